package openai_test

import (
	"strings"
	"testing"

	"trill/engine/provider/openai/openaitest"
)

// BenchmarkStream is rule B18 over a real connection: what one delta costs, from
// the socket to onText. It counts the server's writing too, which is little, as
// all deltas are made before.
func BenchmarkStream(b *testing.B) {
	const deltas = 10_000
	s := server(b)
	one := openaitest.Content(" token").Raw
	// Pieces of some 16 kB, as a busy server's socket would give.
	parts := make([]openaitest.Part, 0, 130)
	for left := deltas; left > 0; left -= 80 {
		parts = append(parts, openaitest.Part{Raw: strings.Repeat(one, min(80, left))})
	}
	parts = append(parts, openaitest.Finish("stop"), openaitest.Usage(10, deltas), openaitest.Done())
	s.Handle(func(*openaitest.Request) openaitest.Reply { return openaitest.Stream(parts...) })
	p := dial(b, s.URL())
	n := 0
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		if _, err := p.Stream(b.Context(), ask("count"), func(string) { n++ }); err != nil {
			b.Fatal(err)
		}
	}
	if n != b.N*deltas {
		b.Fatalf("%d deltas, want %d", n, b.N*deltas)
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "deltas/s")
}

// BenchmarkCall is a whole call of a model that answers at once: what we and the
// loopback add to every turn.
func BenchmarkCall(b *testing.B) {
	s := server(b)
	p := dial(b, s.URL())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Stream(b.Context(), ask("hello"), nil); err != nil {
			b.Fatal(err)
		}
	}
}

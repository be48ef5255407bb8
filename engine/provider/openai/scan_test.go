package openai

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"trill/engine/provider"
)

const usualChunk = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}],"usage":null}`

func TestQuickKnowsTheUsualChunk(t *testing.T) {
	for data, want := range map[string]string{
		usualChunk: " token",
		`{ "choices" : [ { "delta" : { "role":"assistant","content":"a","refusal":null } } ] }`: "a",
	} {
		text, _, ok := quick([]byte(data))
		if !ok || string(text) != want {
			t.Errorf("%s: %q, %v", data, text, ok)
		}
	}
	for _, data := range []string{
		"", "{", "{}", usualChunk + "x", usualChunk[:len(usualChunk)-1],
		strings.Replace(usualChunk, `"usage":null`, `"usage":{}`, 1),
		strings.Replace(usualChunk, `"finish_reason":null`, `"finish_reason":"stop"`, 1),
		strings.Replace(usualChunk, `"index":0`, `"index":1`, 1),
		strings.Replace(usualChunk, " token", `\n`, 1),
		strings.Replace(usualChunk, " token", `ä`, 1),
		strings.Replace(usualChunk, `"created":1700000000`, `"created":01`, 1),
	} {
		if text, _, ok := quick([]byte(data)); ok {
			t.Errorf("%s: took %q", data, text)
		}
	}
	if n := testing.AllocsPerRun(100, func() { quick([]byte(usualChunk)) }); n > 1 { // the conversion
		t.Errorf("%v allocations", n)
	}
}

// FuzzQuick holds that what the quick way takes, encoding/json reads the same.
func FuzzQuick(f *testing.F) {
	f.Add([]byte(usualChunk))
	f.Add([]byte(`{"choices":[{"delta":{"content":"a","content":"b"}}],"choices":[{"delta":{}}]}`))
	f.Add([]byte(`{"model":"a","Model":"b","choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		text, model, ok := quick(data)
		if !ok {
			return
		}
		var c chunk
		if err := json.Unmarshal(data, &c); err != nil {
			t.Fatalf("took %q: %v", data, err)
		}
		if len(c.Choices) != 1 || c.Choices[0].Finish != "" || len(c.Choices[0].Delta.Calls) != 0 || c.Usage != nil ||
			fault(c.Error) != nil || fault(c.Choices[0].Error) != nil || c.Choices[0].Delta.Refusal != "" ||
			string(c.Choices[0].Delta.Content) != string(text) || c.Model != string(model) {
			t.Errorf("%s: took %q of %q, json reads %+v", data, text, model, c)
		}
	})
}

// FuzzStream holds that no stream breaks the reading, that the text told is the
// text returned, and that how the bytes arrive changes nothing.
func FuzzStream(f *testing.F) {
	f.Add([]byte("data: " + usualChunk + "\n\ndata: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"))
	f.Add([]byte(": ping\r\n\r\nevent: x\ndata:{\"error\":null,\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"name\":\"a\",\"arguments\":{}}}]}}]}\n"))
	f.Add([]byte("data: {\"error\":{\"code\":429,\"message\":[]}}\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		read := func(r io.Reader) (string, string, *provider.Response) {
			said := ""
			a := assembler{model: "m", onText: func(s string) { said += s }}
			br := bufio.NewReader(&lines{r: bufio.NewReaderSize(r, 16), left: maxStream})
			for {
				line, err := br.ReadString('\n')
				data, isData := strings.CutPrefix(strings.TrimSpace(line), "data:")
				if !isData && strings.TrimSpace(line) != "" {
					t.Fatalf("%q got through", line)
				}
				if isData && err == nil {
					err = a.add([]byte(strings.TrimSpace(data)))
				}
				if err != nil {
					if e, ok := errors.AsType[*provider.Error](err); ok {
						return said, e.Error(), nil
					}
					if !errors.Is(err, io.EOF) {
						return said, err.Error(), nil
					}
					resp, err := a.response()
					if err != nil {
						return said, err.Error(), nil
					}
					for i, c := range resp.Calls {
						if !usableID(c.ID) || len(c.Args) == 0 {
							t.Fatalf("call %+v", c)
						}
						resp.Calls[i].ID = ""
					}
					if resp.Text != said {
						t.Fatalf("said %q, returned %q", said, resp.Text)
					}
					return said, "", resp
				}
			}
		}
		said, fail, resp := read(strings.NewReader(string(stream)))
		said1, fail1, resp1 := read(iotest.OneByteReader(strings.NewReader(string(stream))))
		if said != said1 || fail != fail1 || !cmp.Equal(resp, resp1) {
			t.Errorf("whole: %q %q %+v\nby bytes: %q %q %+v", said, fail, resp, said1, fail1, resp1)
		}
	})
}

// FuzzRefusal holds that no body of a server gets into an error.
func FuzzRefusal(f *testing.F) {
	f.Add(400, []byte(`{"error":{"code":"context_length_exceeded","message":"m","type":"t"}}`))
	f.Add(429, []byte(`[{"error":{"code":429,"status":"X"}}]`))
	f.Add(200, []byte(`{"error":"x"}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		const secret = "SECRET-0123"
		body = []byte(strings.ReplaceAll(string(body), "m", secret))
		for _, e := range []*provider.Error{refusal(status, body), embedded(body)} {
			if e != nil && (strings.Contains(e.Error(), secret) || e.Class == "" || len(e.Error()) > 200) {
				t.Errorf("error %q of class %q", e, e.Class)
			}
		}
	})
}

// FuzzEchoArgs holds that every call of a history can be sent.
func FuzzEchoArgs(f *testing.F) {
	for _, s := range []string{"", "{}", "[1]", `{"a":`, "null", "\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, args []byte) {
		var object map[string]any
		if err := json.Unmarshal([]byte(echoArgs(args)), &object); err != nil || object == nil {
			t.Errorf("%q became %q: %v", args, echoArgs(args), err)
		}
	})
}

// BenchmarkChunk is our own part of a delta, from the line to onText.
func BenchmarkChunk(b *testing.B) {
	data := []byte(usualChunk)
	a := assembler{model: "m", onText: func(string) {}}
	b.ReportAllocs()
	for b.Loop() {
		if err := a.add(data); err != nil {
			b.Fatal(err)
		}
		a.text.Reset()
	}
}

package providertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"trill/engine/message"
	"trill/engine/provider"
)

// Fault is what goes wrong with an [Answer].
type Fault string

// The faults, as the provider's protocol has them.
const (
	FaultNone       Fault = ""
	FaultBusy       Fault = "busy"       // too many requests; come back after RetryAfter
	FaultOverloaded Fault = "overloaded" // the model is overloaded: 529
	FaultDown       Fault = "down"       // an error inside the server
	FaultKey        Fault = "key"        // the key is wrong
	FaultQuota      Fault = "quota"      // no credit left
	FaultTooLong    Fault = "too long"   // the prompt does not fit
	FaultRefused    Fault = "refused"    // the request makes no sense to the server
	FaultBroken     Fault = "broken"     // the connection breaks after Pieces
	FaultUnfinished Fault = "unfinished" // the stream ends properly, but the message has no finish
	FaultGarbled    Fault = "garbled"    // after Pieces comes what cannot be read
	FaultInStream   Fault = "in stream"  // after Pieces the server says that it is overloaded
	FaultHang       Fault = "hang"       // after Pieces comes nothing, until the caller leaves
)

// Secret is part of whatever a faulty answer's body says. It must not come out.
const Secret = "sk-secret-0123456789"

// RetryAfter is what a busy server asks for.
const RetryAfter = 7 * time.Second

// Answer is what the model says to one request.
type Answer struct {
	Pieces []string // of the text, as they arrive
	Calls  []message.Call
	Usage  message.Usage
	Cut    bool // at the output limit
	Fault  Fault
}

// Peer is a provider and the other end of its line.
type Peer struct {
	Provider provider.Provider
	// Bodies returns the requests as they went out; nil where nothing does.
	Bodies func() [][]byte
}

// Harness makes what [Run] tests.
type Harness struct {
	// Start returns a provider whose model gives these answers, each to one
	// request, in order.
	Start func(t *testing.T, answers ...Answer) Peer
}

// Run is what every provider promises.
func Run(t *testing.T, h Harness) {
	t.Run("text arrives in order and is the response's", h.text)
	t.Run("calls arrive whole and in order", h.calls)
	t.Run("an answer at the output limit is marked", h.cut)
	t.Run("an error says what can be done", h.classes)
	t.Run("an answer that broke off is an error", h.broken)
	t.Run("a caller can leave", h.leave)
	t.Run("a caller that is gone gets no answer", h.gone)
	t.Run("equal requests are equal on the line", h.equal)
	t.Run("several callers at once", h.concurrent)
}

// Ask is a request with everything in it.
func Ask() provider.Request {
	return provider.Request{
		System: "You are a test. <b>&\u2028",
		Messages: []message.Message{
			{Role: message.User, Text: "From Alice (users/alice):\n\nhello"},
			{Role: message.Assistant, Calls: []message.Call{
				{ID: "c1", Tool: "read_file", Args: json.RawMessage(`{"path":"a.txt"}`)},
				{ID: "c2", Tool: "read_file", Args: json.RawMessage(`{"path":`)},
			}},
			{Role: message.Tool, CallID: "c1", Tool: "read_file"},
			{Role: message.Tool, CallID: "c2", Tool: "read_file", Text: "no such file", Failed: true},
			{Role: message.Assistant, Text: "Nothing there."},
			{Role: message.User, Text: "and now?"},
		},
		Tools: []provider.Tool{
			{Name: "read_file", Description: "Reads.", Schema: json.RawMessage(`{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}`)},
			{Name: "stop"},
		},
	}
}

// collect streams and fails the test if the pieces are not the text.
func collect(ctx context.Context, t *testing.T, p provider.Provider, req provider.Request) (*provider.Response, []string, error) {
	t.Helper()
	var pieces []string
	resp, err := p.Stream(ctx, req, func(s string) {
		if s == "" {
			t.Error("an empty piece was streamed")
		}
		pieces = append(pieces, s)
	})
	switch {
	case (resp == nil) == (err == nil):
		t.Errorf("Stream returned %v and %v, want one of them", resp, err)
	case err == nil && strings.Join(pieces, "") != resp.Text:
		t.Errorf("streamed %q, but the text is %q", strings.Join(pieces, ""), resp.Text)
	}
	return resp, pieces, err
}

func (h Harness) text(t *testing.T) {
	pieces := []string{"Good ", "morning", ", \"Zoë\" 🎉\n", "<b>", "\\n"}
	want := message.Usage{Input: 120, Output: 8}
	p := h.Start(t, Answer{Pieces: pieces, Usage: want}, Answer{Pieces: pieces, Usage: want}).Provider
	resp, got, err := collect(t.Context(), t, p, Ask())
	if err != nil {
		t.Fatal(err)
	}
	if resp.Text != strings.Join(pieces, "") || len(resp.Calls) != 0 || resp.Cut {
		t.Errorf("got %+v", resp)
	}
	if len(got) < 2 {
		t.Errorf("the text came in %d pieces, want it as it arrives", len(got))
	}
	if diff := cmp.Diff(want, resp.Usage); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
	if resp.Model == "" {
		t.Error("the response does not name its model")
	}
	if resp, err := p.Stream(t.Context(), Ask(), nil); err != nil || resp.Text != strings.Join(pieces, "") {
		t.Errorf("without onText: %v, %v", resp, err)
	}
}

func (h Harness) calls(t *testing.T) {
	want := []message.Call{
		{ID: "call_a", Tool: "read_file", Args: json.RawMessage(`{"path":"ä \"quoted\".txt"}`)},
		{ID: "call_b", Tool: "stop", Args: json.RawMessage(`{}`)},
		{ID: "call_c", Tool: "read_file", Args: json.RawMessage(`{"path":"b"}`)},
	}
	p := h.Start(t, Answer{Pieces: []string{"Let me ", "look."}, Calls: want}).Provider
	resp, _, err := collect(t.Context(), t, p, Ask())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, resp.Calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if resp.Text != "Let me look." {
		t.Errorf("text %q", resp.Text)
	}
}

func (h Harness) cut(t *testing.T) {
	p := h.Start(t, Answer{Pieces: []string{"Once upon "}, Cut: true}).Provider
	resp, _, err := collect(t.Context(), t, p, Ask())
	if err != nil {
		t.Fatal(err)
	}
	if !resp.Cut || resp.Text != "Once upon " {
		t.Errorf("got %+v, want it marked as cut", resp)
	}
}

func (h Harness) classes(t *testing.T) {
	for fault, want := range map[Fault]provider.Class{
		FaultBusy:       provider.ClassRetry,
		FaultOverloaded: provider.ClassRetry,
		FaultDown:       provider.ClassRetry,
		FaultInStream:   provider.ClassRetry,
		FaultKey:        provider.ClassAuth,
		FaultQuota:      provider.ClassAuth,
		FaultTooLong:    provider.ClassContext,
		FaultRefused:    provider.ClassRequest,
	} {
		t.Run(string(fault), func(t *testing.T) {
			p := h.Start(t, Answer{Fault: fault}, Answer{Pieces: []string{"ok"}}).Provider
			_, _, err := collect(t.Context(), t, p, Ask())
			e, ok := errors.AsType[*provider.Error](err)
			if !ok {
				t.Fatalf("got %v, want a *provider.Error", err)
			}
			if e.Class != want {
				t.Errorf("class %q, want %q (%v)", e.Class, want, e)
			}
			if strings.Contains(err.Error(), Secret) || strings.Contains(fmt.Sprintf("%+v", e), Secret) {
				t.Errorf("the error repeats what the server said: %v", err)
			}
			if fault == FaultBusy && e.RetryAfter != RetryAfter {
				t.Errorf("wait %v, want %v", e.RetryAfter, RetryAfter)
			}
			if resp, err := p.Stream(t.Context(), Ask(), nil); err != nil || resp.Text != "ok" {
				t.Errorf("the next call: %v, %v", resp, err)
			}
		})
	}
}

func (h Harness) broken(t *testing.T) {
	for _, fault := range []Fault{FaultBroken, FaultUnfinished, FaultGarbled} {
		t.Run(string(fault), func(t *testing.T) {
			p := h.Start(t, Answer{Pieces: []string{"The answer ", "is "}, Fault: fault}).Provider
			_, pieces, err := collect(t.Context(), t, p, Ask())
			if e, ok := errors.AsType[*provider.Error](err); !ok || e.Class != provider.ClassRetry {
				t.Errorf("got %v, want an error that can be retried", err)
			}
			if got := strings.Join(pieces, ""); got != "The answer is " {
				t.Errorf("streamed %q before it broke", got)
			}
		})
	}
}

func (h Harness) leave(t *testing.T) {
	cause := errors.New("stopped by a person")
	for _, pieces := range [][]string{nil, {"one ", "two "}} {
		t.Run(fmt.Sprintf("after %d pieces", len(pieces)), func(t *testing.T) {
			p := h.Start(t, Answer{Pieces: pieces, Fault: FaultHang}).Provider
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if pieces == nil {
				go cancel(cause)
			}
			got := ""
			_, err := p.Stream(ctx, Ask(), func(s string) {
				if got += s; got == strings.Join(pieces, "") {
					cancel(cause)
				}
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want the context's error", err)
			}
			if e, ok := errors.AsType[*provider.Error](err); ok {
				t.Errorf("got %v, want the context's error as it is", e)
			}
		})
	}
	t.Run("at a deadline", func(t *testing.T) {
		p := h.Start(t, Answer{Fault: FaultHang}).Provider
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := p.Stream(ctx, Ask(), nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the context's error", err)
		}
	})
}

func (h Harness) gone(t *testing.T) {
	p := h.Start(t, Answer{Pieces: []string{"x"}}).Provider
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := p.Stream(ctx, Ask(), func(string) { t.Error("text was streamed") })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}

func (h Harness) equal(t *testing.T) {
	answer := Answer{Pieces: []string{"x"}}
	peer := h.Start(t, answer, answer, answer)
	if peer.Bodies == nil {
		t.Skip("nothing goes out")
	}
	other := Ask()
	other.Messages = append(other.Messages, message.Message{Role: message.Assistant, Text: "x"}, message.Message{Role: message.User, Text: "more"})
	for _, req := range []provider.Request{Ask(), Ask(), other} {
		if _, err := peer.Provider.Stream(t.Context(), req, nil); err != nil {
			t.Fatal(err)
		}
	}
	bodies := peer.Bodies()
	if len(bodies) != 3 {
		t.Fatalf("%d requests went out, want 3", len(bodies))
	}
	if !bytes.Equal(bodies[0], bodies[1]) {
		t.Errorf("equal requests differ:\n%s\n%s", bodies[0], bodies[1])
	}
	if bytes.Equal(bodies[0], bodies[2]) {
		t.Error("different requests are equal")
	}
}

func (h Harness) concurrent(t *testing.T) {
	const n = 16
	answers := make([]Answer, n)
	for i := range answers {
		answers[i] = Answer{Pieces: []string{fmt.Sprintf("answer %d", i), " is ", "here"}}
	}
	p := h.Start(t, answers...).Provider
	var wg sync.WaitGroup
	texts := make([]string, n)
	for i := range n {
		wg.Go(func() {
			if resp, _, err := collect(t.Context(), t, p, Ask()); err != nil {
				t.Error(err)
			} else {
				texts[i] = resp.Text
			}
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for _, s := range texts {
		seen[s] = true
	}
	if len(seen) != n {
		t.Errorf("%d different answers, want %d", len(seen), n)
	}
}

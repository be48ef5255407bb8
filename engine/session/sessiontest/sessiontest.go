// Package sessiontest is what every [session.Store] has to do, as tests that each
// of them runs.
package sessiontest

import (
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"trill/engine/message"
	"trill/engine/session"
)

// Run tests the stores that open makes; each call makes an empty one.
func Run(t *testing.T, open func(t *testing.T) session.Store) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, s session.Store)
	}{
		{"an unknown session is empty", testUnknown},
		{"every kind of event comes back as it was", testRoundTrip},
		{"arguments come back to the byte", testArguments},
		{"events are read in pages", testPages},
		{"the prompt begins at the newest trim", testPrompt},
		{"a gap, a repeat and a late start are conflicts", testConflict},
		{"all events of a call are stored or none", testAtomic},
		{"one call appends to several sessions", testSeveral},
		{"of those who append at once one wins", testRace},
		{"sessions grow side by side", testSideBySide},
		{"appending nothing is fine", testNothing},
		{"what was read is a copy", testCopy},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 678_000, time.UTC)

// event makes one event; its time has no more than the microseconds that stores keep.
func event(id session.ID, seq int64, kind session.Kind, data any) session.Event {
	return session.Event{
		Session: id, Seq: seq, Run: "run_1", Time: epoch.Add(time.Duration(seq) * time.Second), Kind: kind, Data: data,
	}
}

func user(id session.ID, seq int64, text string) session.Event {
	return event(id, seq, session.KindUser, &session.User{Text: text})
}

func mustAppend(t *testing.T, s session.Store, evs ...session.Event) {
	t.Helper()
	if err := s.Append(t.Context(), evs...); err != nil {
		t.Fatalf("append: %v", err)
	}
}

func wantEvents(t *testing.T, s session.Store, id session.ID, want []session.Event) {
	t.Helper()
	got, err := s.Events(t.Context(), id, 0, 0)
	if err != nil {
		t.Fatalf("events: %v", err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("transcript of %s (-want +got):\n%s", id, d)
	}
	last, err := s.Last(t.Context(), id)
	if err != nil || last != int64(len(want)) {
		t.Errorf("last of %s = %d, %v; want %d", id, last, err, len(want))
	}
}

func wantConflict(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, session.ErrConflict) {
		t.Errorf("got error %v, want %v", err, session.ErrConflict)
	}
}

func testUnknown(t *testing.T, s session.Store) {
	for name, read := range map[string]func() ([]session.Event, error){
		"events": func() ([]session.Event, error) { return s.Events(t.Context(), "sess_none", 0, 0) },
		"prompt": func() ([]session.Event, error) { return s.Prompt(t.Context(), "sess_none") },
	} {
		if evs, err := read(); err != nil || len(evs) != 0 {
			t.Errorf("%s = %v, %v; want none", name, evs, err)
		}
	}
	if last, err := s.Last(t.Context(), "sess_none"); err != nil || last != 0 {
		t.Errorf("last = %d, %v; want 0", last, err)
	}
}

func testRoundTrip(t *testing.T, s session.Store) {
	const id = "sess_a"
	evs := []session.Event{
		event(id, 1, session.KindUser, &session.User{
			Text: "look at \u2028 <b>this</b> & 🙂\n\ttabs \x00 and nul", Name: "Ann", Person: "cloud:users/ann",
			Steered: true, Quoted: "> old", Attachments: []string{"a.txt (3 kB)"},
		}),
		event(id, 2, session.KindAssistant, &session.Assistant{
			Text: "I will", Model: "m-1",
			Calls: []message.Call{{ID: "c1", Tool: "shell", Args: json.RawMessage(`{"command":"ls"}`)}},
			Usage: message.Usage{Input: 100, Output: 20, CachedInput: 60, Reasoning: 5}, Wasted: message.Usage{Input: 7},
		}),
		event(id, 3, session.KindPermission, &session.Permission{
			CallID: "c1", Tool: "shell", Decision: "allow", Reason: "said yes", By: "cloud:users/bob",
		}),
		event(id, 4, session.KindToolStart, &session.ToolStart{CallID: "c1", Tool: "shell"}),
		event(id, 5, session.KindToolResult, &session.ToolResult{
			CallID: "c1", Tool: "shell", Text: "a\nb", Failed: true, Took: 1500 * time.Millisecond,
		}),
		event(id, 6, session.KindRetry, &session.Retry{Attempt: 2, Delay: time.Second, Error: "503"}),
		event(id, 7, session.KindTrim, &session.Trim{From: 2}),
		event(id, 8, session.KindAssistant, &session.Assistant{Text: "done", Model: "m-1"}),
		event(id, 9, session.KindEnd, &session.End{Reason: session.EndFailed, Text: "sorry", Error: "EOF"}),
	}
	mustAppend(t, s, evs...)
	wantEvents(t, s, id, evs)

	newer := event(id, 10, "hologram", json.RawMessage(`{"depth":3}`))
	mustAppend(t, s, newer)
	wantEvents(t, s, id, append(evs, newer))
}

func testArguments(t *testing.T, s session.Store) {
	const id = "sess_a"
	var calls []message.Call
	for i, args := range []string{
		`{}`, `{"a": 1}`, "{\n  \"a\": \"<&>\"\n}", `{"a":1e2,"a":2}`, `{"cut`, `no json`, `null`, ` `, "\"\\u00e9\u2028\"",
	} {
		calls = append(calls, message.Call{ID: "c" + strconv.Itoa(i), Tool: "t", Args: json.RawMessage(args)})
	}
	calls = append(calls, message.Call{ID: "none", Tool: "t"})
	evs := []session.Event{event(id, 1, session.KindAssistant, &session.Assistant{Model: "m", Calls: calls})}
	mustAppend(t, s, evs...)
	wantEvents(t, s, id, evs)
}

func testPages(t *testing.T, s session.Store) {
	const id = "sess_a"
	for seq := int64(1); seq <= 5; seq++ {
		mustAppend(t, s, user(id, seq, "m"))
	}
	for _, c := range []struct {
		after int64
		limit int
		want  []int64
	}{
		{0, 0, []int64{1, 2, 3, 4, 5}},
		{0, 2, []int64{1, 2}},
		{2, 2, []int64{3, 4}},
		{4, 2, []int64{5}},
		{5, 2, nil},
		{99, 0, nil},
	} {
		evs, err := s.Events(t.Context(), id, c.after, c.limit)
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		for _, e := range evs {
			got = append(got, e.Seq)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("events after %d, at most %d (-want +got):\n%s", c.after, c.limit, d)
		}
	}
}

func testPrompt(t *testing.T, s session.Store) {
	const id = "sess_a"
	first := func() int64 {
		t.Helper()
		evs, err := s.Prompt(t.Context(), id)
		if err != nil || len(evs) == 0 {
			t.Fatalf("prompt = %v, %v", evs, err)
		}
		last, err := s.Last(t.Context(), id)
		if err != nil || evs[len(evs)-1].Seq != last || int64(len(evs)) != last-evs[0].Seq+1 {
			t.Errorf("prompt has %d events from %d to %d; the newest is %d", len(evs), evs[0].Seq, evs[len(evs)-1].Seq, last)
		}
		return evs[0].Seq
	}
	mustAppend(t, s, user(id, 1, "a"), user(id, 2, "b"), user(id, 3, "c"))
	if got := first(); got != 1 {
		t.Errorf("without a trim the prompt begins at %d", got)
	}
	mustAppend(t, s, event(id, 4, session.KindTrim, &session.Trim{From: 3}))
	if got := first(); got != 3 {
		t.Errorf("after a trim from 3 the prompt begins at %d", got)
	}
	mustAppend(t, s, user(id, 5, "d"), event(id, 6, session.KindTrim, &session.Trim{From: 5}), user(id, 7, "e"))
	if got := first(); got != 5 {
		t.Errorf("after a trim from 5 the prompt begins at %d", got)
	}
}

func testConflict(t *testing.T, s session.Store) {
	const id = "sess_a"
	wantConflict(t, s.Append(t.Context(), user(id, 2, "late start")))
	wantConflict(t, s.Append(t.Context(), user(id, 0, "no number")))
	evs := []session.Event{user(id, 1, "a"), user(id, 2, "b")}
	mustAppend(t, s, evs...)
	wantConflict(t, s.Append(t.Context(), user(id, 1, "begins again")))
	wantConflict(t, s.Append(t.Context(), user(id, 2, "repeat")))
	wantConflict(t, s.Append(t.Context(), user(id, 4, "gap")))
	wantConflict(t, s.Append(t.Context(), user(id, 3, "c"), user(id, 5, "gap inside")))
	wantEvents(t, s, id, evs)
}

func testAtomic(t *testing.T, s session.Store) {
	mustAppend(t, s, user("sess_b", 1, "b"))
	wantConflict(t, s.Append(t.Context(), user("sess_a", 1, "a"), user("sess_b", 1, "again")))
	wantEvents(t, s, "sess_a", nil)
	wantEvents(t, s, "sess_b", []session.Event{user("sess_b", 1, "b")})
}

func testSeveral(t *testing.T, s session.Store) {
	mustAppend(t, s, user("sess_a", 1, "a"), user("sess_b", 1, "b"), user("sess_a", 2, "aa"))
	wantEvents(t, s, "sess_a", []session.Event{user("sess_a", 1, "a"), user("sess_a", 2, "aa")})
	wantEvents(t, s, "sess_b", []session.Event{user("sess_b", 1, "b")})
}

func testRace(t *testing.T, s session.Store) {
	const id, rounds, writers = "sess_a", 20, 8
	var want []session.Event
	for seq := int64(1); seq <= rounds; seq++ {
		won := make(chan session.Event, writers)
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				e := user(id, seq, strconv.Itoa(w))
				switch err := s.Append(t.Context(), e); {
				case err == nil:
					won <- e
				case !errors.Is(err, session.ErrConflict):
					t.Errorf("append: %v", err)
				}
			})
		}
		wg.Wait()
		if len(won) != 1 {
			t.Fatalf("%d writers stored event %d", len(won), seq)
		}
		want = append(want, <-won)
	}
	wantEvents(t, s, id, want)
}

func testSideBySide(t *testing.T, s session.Store) {
	const sessions, length = 16, 25
	var wg sync.WaitGroup
	for n := range sessions {
		wg.Go(func() {
			id := session.ID("sess_" + strconv.Itoa(n))
			for seq := int64(1); seq <= length; seq++ {
				if err := s.Append(t.Context(), user(id, seq, "m")); err != nil {
					t.Errorf("append to %s: %v", id, err)
					return
				}
				if last, err := s.Last(t.Context(), id); err != nil || last != seq {
					t.Errorf("after event %d of %s: last = %d, %v", seq, id, last, err)
				}
			}
		})
	}
	wg.Wait()
	for n := range sessions {
		evs, err := s.Events(t.Context(), session.ID("sess_"+strconv.Itoa(n)), 0, 0)
		if err != nil || len(evs) != length {
			t.Errorf("session %d has %d events, %v; want %d", n, len(evs), err, length)
		}
	}
}

func testNothing(t *testing.T, s session.Store) {
	if err := s.Append(t.Context()); err != nil {
		t.Error(err)
	}
}

func testCopy(t *testing.T, s session.Store) {
	const id = "sess_a"
	mustAppend(t, s, user(id, 1, "a"), user(id, 2, "b"))
	evs, err := s.Events(t.Context(), id, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	evs[0].Kind = session.KindEnd
	wantEvents(t, s, id, []session.Event{user(id, 1, "a"), user(id, 2, "b")})
}

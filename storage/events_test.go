package storage

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"trill/engine/message"
	"trill/engine/session"
)

// FuzzArguments checks that what a model wrote as arguments comes back to the
// byte, whatever it is.
func FuzzArguments(f *testing.F) {
	for _, s := range []string{``, `{}`, `{"a": 1}`, `{"cut`, "null", "\"\\u2028\"", "\n[1, 2]", `"<"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, args string) {
		if !utf8.ValidString(args) {
			t.Skip("JSON cannot keep it, and models write text")
		}
		want := &session.Assistant{Model: "m", Calls: []message.Call{{ID: "c", Tool: "t", Args: json.RawMessage(args)}}}
		text, err := encodeEvent(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeEvent(session.KindAssistant, []byte(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("stored as %s (-want +got):\n%s", text, d)
		}
	})
}

func TestTitle(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{" \n\t ", ""},
		{"fix\nthe  build", "fix the build"},
		{"0123456789012345678901234567890123456789012345678901234567890123456789012345678", "0123456789012345678901234567890123456789012345678901234567890123456789012345678"},
		{"01234567890123456789012345678901234567890123456789012345678901234567890123456789x", "0123456789012345678901234567890123456789012345678901234567890123456789012345678…"},
	} {
		if got := titleOf(c.text); got != c.want {
			t.Errorf("titleOf(%q) = %q, want %q", c.text, got, c.want)
		}
	}
}

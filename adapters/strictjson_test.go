package adapters_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"trill/adapters"
)

func TestJSONThatCouldBeReadInTwoWaysIsRefused(t *testing.T) {
	cases := map[string]struct {
		in string
		ok bool
	}{
		"an object":                        {`{"a":1,"b":[true,false,null,"x",-1.5e+3,0]}`, true},
		"white space around":               {" \r\n\t{ \"a\" : [ ] , \"b\" : { } } \n", true},
		"a scalar":                         {`"x"`, true},
		"same name at different levels":    {`{"a":{"a":{"a":1}},"b":{"a":2}}`, true},
		"surrogate pair":                   {`"\ud83d\uDE00"`, true},
		"depth 32":                         {strings.Repeat("[", 32) + strings.Repeat("]", 32), true},
		"depth 33":                         {strings.Repeat("[", 33) + strings.Repeat("]", 33), false},
		"A11 a megabyte of nested arrays":  {strings.Repeat("[", 1<<20), false},
		"A04 a second value":               {`{"a":1}{"a":2}`, false},
		"A04 trailing garbage":             {`{"a":1} x`, false},
		"trailing NUL":                     {"{}\x00", false},
		"A05 duplicate name":               {`{"id":"1","id":"2"}`, false},
		"A05 duplicate name deeper":        {`{"object":[{"id":"1","x":0,"id":"2"}]}`, false},
		"names that differ by case":        {`{"type":"Create","Type":"Join"}`, false},
		"names that differ by escapes":     {`{"type":1,"\u0074ype":2}`, false},
		"names that differ by Kelvin sign": {"{\"k\":1,\"\u212a\":2}", false},
		"names that differ by long s":      {`{"size":1,"\u017fize":2}`, false},
		"duplicate name among many":        {many(100, "k7"), false},
		"duplicate by case among many":     {many(100, "K7"), false},
		"many names":                       {many(100, "other"), true},
		"half a surrogate pair":            {`"\ud83d"`, false},
		"half a pair and another":          {`"\ud83d\u0041"`, false},
		"low half first":                   {`"\ude00"`, false},
		"invalid UTF-8":                    {"\"\xff\"", false},
		"overlong UTF-8":                   {"\"\xc0\xaf\"", false},
		"control character in string":      {"\"a\nb\"", false},
		"bad escape":                       {`"\x41"`, false},
		"cut escape":                       {`"\u00`, false},
		"cut string":                       {`"abc`, false},
		"cut object":                       {`{"a":1`, false},
		"trailing comma":                   {`{"a":1,}`, false},
		"array comma":                      {`[1,]`, false},
		"leading zero":                     {`01`, false},
		"plus":                             {`+1`, false},
		"bare dot":                         {`1.`, false},
		"bare minus":                       {`-`, false},
		"bare exponent":                    {`1e`, false},
		"unquoted name":                    {`{a:1}`, false},
		"comment":                          {`{} // x`, false},
		"byte order mark":                  {"\ufeff{}", false},
		"nothing":                          {``, false},
		"misspelt literal":                 {`nul`, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := adapters.CheckJSON([]byte(c.in))
			if (err == nil) != c.ok {
				t.Errorf("CheckJSON = %v, want accepted = %v", err, c.ok)
			}
			if err == nil && !json.Valid([]byte(c.in)) {
				t.Error("accepted what encoding/json calls invalid")
			}
		})
	}
}

func TestCheckJSONDoesNotAllocate(t *testing.T) {
	body := []byte(webhookBody)
	if n := testing.AllocsPerRun(100, func() {
		if err := adapters.CheckJSON(body); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// many is an object with n names k0, k1, ... and then one more.
func many(n int, last string) string {
	var b strings.Builder
	b.WriteString("{")
	for i := range n {
		fmt.Fprintf(&b, "%q:0,", fmt.Sprint("k", i))
	}
	fmt.Fprintf(&b, "%q:0}", last)
	return b.String()
}

const webhookBody = `{"type":"Create","actor":{"type":"Person","id":"users\/alice","name":"Alice \u00c4","talkParticipantType":"1"},` +
	`"object":{"type":"Note","id":"3","name":"message","content":"{\"message\":\"hello\",\"parameters\":[]}","mediaType":"text\/markdown"},` +
	`"target":{"type":"Collection","id":"njgum9ki","name":"B\u00fcro Test"}}`

func FuzzCheckJSON(f *testing.F) {
	for _, s := range []string{webhookBody, `{"a":1,"A":2}`, `[1e5,"\ud83d\ude00"]`, many(20, "x"), `{"\u017f":1,"s":2}`, "[[]]"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if adapters.CheckJSON(data) != nil {
			return
		}
		if !json.Valid(data) {
			t.Fatalf("accepted, but encoding/json does not: %q", data)
		}
		// What is accepted and decoded to maps has as many names as the text:
		// encoding it again and checking it finds nothing new.
		var v any
		if err := json.Unmarshal(data, &v); err != nil {
			return // a number that is out of range
		}
		again, err := json.Marshal(v)
		if err != nil {
			t.Fatalf("encode: %v", err)
		}
		if err := adapters.CheckJSON(again); err != nil {
			t.Fatalf("refused after a round trip: %v: %q -> %q", err, data, again)
		}
	})
}

func BenchmarkCheckJSON(b *testing.B) {
	body := []byte(webhookBody)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if err := adapters.CheckJSON(body); err != nil {
			b.Fatal(err)
		}
	}
}

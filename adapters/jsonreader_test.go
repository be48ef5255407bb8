package adapters_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"trill/adapters"
)

// tree reads any value with all that a reader has; an array as encoding/json does.
func tree(r *adapters.JSONReader) any {
	switch r.Kind() {
	case '{':
		m := make(map[string]any)
		r.Object(func(name []byte) {
			key := string(name)
			m[key] = tree(r)
		})
		return m
	case '"':
		return r.String()
	default:
		var v any
		if json.Unmarshal(r.Raw(), &v) != nil {
			return nil
		}
		return v
	}
}

func TestReaderReadsWhatIsThere(t *testing.T) {
	const in = ` { "a\u0062" : "\"\\\/\b\f\n\r\t\u00fc\ud83d\uDE00ü" , "n" : -1.5e3 , "skipped" : [ { "a" : 1 } ] , "left" : { } ,
		"inner" : { "x" : null , "y" : "` + "plain" + `" } } `
	got := make(map[string]string)
	r := adapters.NewJSONReader([]byte(in))
	r.Object(func(name []byte) {
		switch string(name) {
		case "ab":
			got["ab"] = r.String()
		case "n":
			got["n"] = string(r.Kind()) + string(r.Raw())
		case "left":
			r.Kind() // looking is not reading
		case "inner":
			r.Object(func(name []byte) { got[string(name)] = string(r.Bytes()) + "." })
		}
	})
	if err := r.End(); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"ab": "\"\\/\b\f\n\r\tü😀ü", "n": "0-1.5e3", "x": ".", "y": "plain."}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
}

func TestReaderRefusesWhatIsNotThere(t *testing.T) {
	object := func(r *adapters.JSONReader) { r.Object(func([]byte) {}) }
	text := func(r *adapters.JSONReader) { _ = r.String() }
	first := func(r *adapters.JSONReader) {
		r.Object(func(name []byte) {
			if string(name) == "a" {
				_ = r.String()
			}
		})
	}
	for name, c := range map[string]struct {
		in   string
		read func(*adapters.JSONReader)
		ok   bool
	}{
		"an object":                {`{"a":1}`, object, true},
		"null for an object":       {`null`, object, true},
		"null for a string":        {`null`, text, true},
		"an array for an object":   {`[]`, object, false},
		"a string for an object":   {`"x"`, object, false},
		"a number for a string":    {`7`, text, false},
		"nothing":                  {``, text, false},
		"nothing for an object":    {` `, object, false},
		"no JSON":                  {`x`, object, false},
		"what nobody read":         {`{}`, func(*adapters.JSONReader) {}, false},
		"something after it":       {`{} {}`, object, false},
		"a member of another kind": {`{"a":7,"b":1}`, first, false},
		"a name twice":             {`{"a":"x","b":1,"a":"y"}`, first, false},
		"a name twice by case":     {`{"a":"x","A":"y"}`, first, false},
		"a name twice by escapes":  {`{"a":"x","\u0061":"y"}`, first, false},
		"a fault in what is left":  {`{"b":{"c":1,"c":2}}`, first, false},
		"cut":                      {`{"a":"x"`, first, false},
		"half a pair":              {`{"a":"\ud83d"}`, first, false},
		"depth 32":                 {`{"b":` + strings.Repeat("[", 31) + strings.Repeat("]", 31) + `}`, first, true},
		"depth 33":                 {`{"b":` + strings.Repeat("[", 32) + strings.Repeat("]", 32) + `}`, first, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := adapters.NewJSONReader([]byte(c.in))
			c.read(r)
			err := r.End()
			if (err == nil) != c.ok {
				t.Errorf("error %v, want accepted = %v", err, c.ok)
			}
			if err != nil && (r.Kind() != 0 || r.Raw() != nil || r.String() != "" || !errors.Is(r.End(), err)) {
				t.Error("it reads on after a fault")
			}
		})
	}
}

func FuzzJSONReader(f *testing.F) {
	for _, s := range []string{webhookBody, `{"a":1,"A":2}`, `{"\u0061":"\ud83d\ude00\n\/"}`, many(20, "x"), `{"a":{"b":{"c":"\\"}}}`, `"\u2028"`, `null`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := adapters.NewJSONReader(data)
		got := tree(r)
		if err, want := r.End(), adapters.CheckJSON(data); (err == nil) != (want == nil) {
			t.Fatalf("%q: the reader says %v, CheckJSON %v", data, err, want)
		} else if err != nil {
			return
		}
		var want any
		if json.Unmarshal(data, &want) != nil {
			return // a number that is out of range
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-encoding/json +got):\n%s", data, diff)
		}
	})
}

func BenchmarkJSONReader(b *testing.B) {
	body := []byte(webhookBody)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		r := adapters.NewJSONReader(body)
		r.Object(func(name []byte) {
			if string(name) == "object" {
				r.Object(func(name []byte) {
					if string(name) == "content" {
						_ = r.Bytes()
					}
				})
			}
		})
		if err := r.End(); err != nil {
			b.Fatal(err)
		}
	}
}

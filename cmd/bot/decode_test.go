package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"
	"github.com/rogpeppe/go-internal/txtar"

	"trill/adapters"
	"trill/adapters/nextcloudtalk"
)

var update = flag.Bool("update", false, "write the want parts of testdata anew")

func talk() map[string]func() any {
	return map[string]func() any{string(nextcloudtalk.Platform): func() any { return new(nextcloudtalk.Config) }}
}

// environment looks variables up in lines NAME=value.
func environment(lines string) func(string) (string, bool) {
	vars := map[string]string{}
	for line := range strings.Lines(lines) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		vars[name] = value
	}
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

// TestConfigFaults reads the files of testdata/config and compares everything
// that is said about them.
func TestConfigFaults(t *testing.T) {
	files, err := filepath.Glob("testdata/config/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no test files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			golden, err := filepath.Abs(file)
			if err != nil {
				t.Fatal(err)
			}
			a, err := txtar.ParseFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			t.Chdir(t.TempDir())
			var env, conf, want string
			for _, f := range a.Files {
				mode := os.FileMode(0o600)
				if strings.HasPrefix(f.Name, "world-") {
					mode = 0o644
				}
				switch {
				case f.Name == "env":
					env = string(f.Data)
					continue
				case f.Name == "want":
					want = string(f.Data)
					continue
				case strings.HasSuffix(f.Name, "trill.toml"):
					conf = f.Name
				case f.Name == "binary.txt":
					f.Data = []byte("a\x00b")
				}
				if err := os.MkdirAll(filepath.Dir(f.Name), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(f.Name, f.Data, mode); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(f.Name, mode); err != nil { // whatever the umask
					t.Fatal(err)
				}
			}
			_, warnings, err := loadConfig(conf, environment(env), talk())
			var got strings.Builder
			if err != nil {
				if _, ok := errors.AsType[configFaults](err); !ok {
					t.Errorf("error is a %T", err)
				}
				fmt.Fprintln(&got, err)
			}
			for _, w := range warnings {
				fmt.Fprintln(&got, "warning:", w)
			}
			if strings.Contains(got.String(), "hunter2") {
				t.Errorf("a secret is told:\n%s", got.String())
			}
			if *update {
				a.Files = slices.DeleteFunc(a.Files, func(f txtar.File) bool { return f.Name == "want" })
				a.Files = append(a.Files, txtar.File{Name: "want", Data: []byte(got.String())})
				if err := os.WriteFile(golden, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(want, got.String()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// decodeText decodes text as a file trill.toml in an empty folder.
func decodeText(text string, env func(string) (string, bool), platforms map[string]func() any) (*Config, []Warning, error) {
	d := &decoder{file: "trill.toml", dir: "/nonexistent", env: env, platforms: platforms}
	return d.config([]byte(text))
}

func noEnv(string) (string, bool) { return "", false }

// settings has every type that a platform may use.
type settings struct {
	shared
	Key    adapters.Secret `toml:"key"`
	Limit  Size            `toml:"limit"`
	Wait   time.Duration   `toml:"wait"`
	Own    Duration        `toml:"own" min:"2s"`
	Many   []string        `toml:"many"`
	Count  int64           `toml:"count"`
	Kind   adapters.Kind   `toml:"kind" one:"text|edit"`
	On     bool            `toml:"on"`
	Nested struct {
		Deep string `toml:"deep"`
	} `toml:"nested"`
	Internal string
	Hidden   string `toml:"-"`
}

type shared struct {
	Region string `toml:"region"`
}

// Validate finds two faults that are wrapped differently.
func (s *settings) Validate() error {
	var errs []error
	if s.Region == "mars" {
		errs = append(errs, fmt.Errorf("region: no such region as %s, key was %s", s.Region, s.Key.Reveal()))
	}
	if s.Count == 13 {
		errs = append(errs, errors.Join(errors.New("an unlucky configuration")))
	}
	return errors.Join(errs...)
}

func fake() map[string]func() any {
	return map[string]func() any{"fake": func() any { return &settings{Limit: 7, shared: shared{Region: "eu"}} }}
}

const fakeChannel = "[models.default]\nprovider = \"offline\"\n[channels.x]\nplatform = \"fake\"\n"

func TestPlatformsHaveSettingsOfTheirOwn(t *testing.T) {
	c, _, err := decodeText(fakeChannel+`
key = "env:KEY"
limit = "25MB"
wait = "90s"
own = "2s"
many = ["a", "env:KEY"]
count = 0x10
kind = "edit"
on = true
nested.deep = '''x'''
`, environment("KEY=a-long-enough-key\n"), fake())
	if err != nil {
		t.Fatal(err)
	}
	want := &settings{shared: shared{"eu"}, Key: "a-long-enough-key", Limit: 25_000_000, Wait: 90 * time.Second, Own: Duration(2 * time.Second),
		Many: []string{"a", "a-long-enough-key"}, Count: 16, Kind: adapters.KindEdit, On: true}
	want.Nested.Deep = "x"
	if !reflect.DeepEqual(c.Channels["x"].Settings, want) {
		t.Errorf("got %+v, want %+v", c.Channels["x"].Settings, want)
	}
	if c.Channels["x"].Ambiguous != "resend" {
		t.Errorf("ambiguous = %q, want its default", c.Channels["x"].Ambiguous)
	}
}

func TestFaultsOfPlatformSettings(t *testing.T) {
	_, _, err := decodeText(fakeChannel+`region = "mars"
key = "a-very-secret-key"
count = 13
limit = "25 apples"
own = "1s"
many = ["a", 2]
nested = 1
`, noEnv, fake())
	want := `trill.toml:3:11: channels.x: an unlucky configuration
trill.toml:5:10: channels.x.region: no such region as mars, key was ***
trill.toml:8:9: channels.x.limit: want a size such as "25MB"
trill.toml:9:7: channels.x.own: must be at least 2s
trill.toml:10:14: channels.x.many: wants text in quotes, such as "..." or "env:NAME", not a number
trill.toml:11:10: channels.x.nested: wants a table [channels.x.nested], not a number`
	if err == nil {
		t.Fatal("no fault was found")
	}
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestFilesFromOtherEditors(t *testing.T) {
	for name, text := range map[string]string{
		"byte order mark":     "\ufeff[models.default]\nprovider = \"offline\"\n",
		"CRLF":                "[models.default]\r\nprovider = \"offline\"\r\n",
		"no last newline":     "[models.default]\nprovider = \"offline\"",
		"inline tables":       `models = { default = { provider = "offline" } }`,
		"dotted keys":         `models.default.provider = "offline"`,
		"quoted keys":         `"models".'default'."provider" = "offline"`,
		"comments only after": "# one\n\n[models.default] # two\n provider = 'offline' # three\n",
	} {
		t.Run(name, func(t *testing.T) {
			c, _, err := decodeText(text, noEnv, talk())
			if err != nil {
				t.Fatal(err)
			}
			if c.Models["default"].Provider != "offline" {
				t.Errorf("models = %v", c.Models)
			}
		})
	}
}

func TestFilesThatAreNoText(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"UTF-16":               {"\xff\xfe[\x00b\x00]\x00", "trill.toml:1:1: the file is not UTF-8; save it as UTF-8 text"},
		"Latin-1":              {"[bot]\nname = \"J\xf6rg\"\n", "trill.toml:2:10: bot.name: this is not UTF-8; save the file as UTF-8 text"},
		"NUL in a value":       {"[bot]\nname = \"a\x00\"\n", `trill.toml:2:10: bot.name: there is a control character; write it as \u0000 with its number`},
		"NUL at the line":      {"\x00\n", "trill.toml:1:1: expected a key, as in name = \"value\", or a [table]"},
		"a lone CR":            {"[bot]\rname = \"x\"\n", "trill.toml:1:6: something follows that does not belong here; text needs quotes, and every key its own line"},
		"open at the end":      {"[bot]\nname = \"\"\"abc", "trill.toml:2:13: bot.name: the text is not closed; add the three quotes"},
		"column in characters": {"[bot]\nname = \"äöü\" x", "trill.toml:2:14: bot.name: something follows that does not belong here; text needs quotes, and every key its own line"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := decodeText(c.text, noEnv, talk())
			if err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestManySyntaxFaultsEndSomewhere(t *testing.T) {
	_, _, err := decodeText(strings.Repeat("a = [\n", 100_000), noEnv, talk())
	fs, ok := errors.AsType[configFaults](err)
	if !ok || len(fs) != maxSyntax+1 {
		t.Errorf("%d faults, want %d", len(fs), maxSyntax+1)
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "512": 512, "512B": 512, "64kB": 64_000, "25MB": 25_000_000, "25 mb": 25_000_000,
		"1MiB": 1 << 20, "8GiB": 8 << 30, "1TB": 1e12,
	} {
		var got Size
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q is %d (%v), want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "MB", "-1MB", "1.5MB", "25XB", "25MBMB", "9223372036854775808", "9999999999TB", "1e9"} {
		var got Size
		if err := got.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %d, want an error", text, got)
		}
	}
}

func TestNearestWord(t *testing.T) {
	words := []string{"secret", "url", "webhook_url", "bot_name", "token", "info", "none", "nextcloud-talk"}
	for s, want := range map[string]string{
		"secrt": "secret", "sceret": "secret", "SECRET": "secret", "webhook-url": "webhook_url", "tok": "token",
		"nextcloud": "nextcloud-talk", "nextcloudtalk": "nextcloud-talk", "urls": "url",
		"zzz": "", "x": "", "": "", "colour": "", strings.Repeat("a", 10_000): "",
	} {
		if got := nearest(s, words); got != want {
			t.Errorf("nearest to %.20q is %q, want %q", s, got, want)
		}
	}
}

// FuzzConfig holds that decoding never panics and never loses a fault: whatever
// is accepted is TOML of which every key is known, faults of a readable file stay
// when another one is added, and what comes from the environment is never told.
func FuzzConfig(f *testing.F) {
	files, _ := filepath.Glob("testdata/config/*.txtar")
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, part := range a.Files {
			if strings.HasSuffix(part.Name, ".toml") {
				f.Add(part.Data)
			}
		}
	}
	f.Add([]byte(fakeChannel + "key = \"env:X\"\nnested = {deep = 'a'}\n[[access.grant]]\nwho='*'\nrole='admin'\n"))
	f.Add([]byte("models.default.provider = 'offline'\nmodels.default.x.y = 1979-05-27T07:32:00Z\na = [[1,{b=2}],\n3]\n"))
	f.Add([]byte("[a.b.c]\n[a]\nb.d = 1\n[[a.e]]\n[a.e.f]\n[[a.e]]\n[a.e.f]\n"))
	const value = "value-from-elsewhere"
	env := func(string) (string, bool) { return value, true }
	platforms := fake()
	maps.Copy(platforms, talk())
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.Contains(data, []byte("file:")) || bytes.Contains(data, []byte(value)) || len(data) > 1<<16 {
			t.Skip()
		}
		c, warnings, err := decodeText(string(data), env, platforms)
		var tree map[string]any
		terr := toml.Unmarshal(bytes.TrimPrefix(data, []byte("\ufeff")), &tree)
		if terr != nil && err == nil {
			t.Fatalf("accepted what is no TOML: %v", terr)
		}
		faults, _ := errors.AsType[configFaults](err)
		if (c == nil) != (len(faults) > 0) {
			t.Fatalf("config %v with %d faults", c != nil, len(faults))
		}
		lines := bytes.Count(data, []byte("\n")) + 1
		for _, fault := range append(slices.Clone(faults), warnings...) {
			if fault.Line < 0 || fault.Line > lines || fault.Text == "" || strings.ContainsAny(fault.String(), "\n\x00\x1b") {
				t.Fatalf("odd fault %q of %d lines", fault, lines)
			}
			if strings.Contains(fault.String(), value) {
				t.Fatalf("the fault repeats a borrowed value: %s", fault)
			}
		}
		if err == nil {
			known := map[string][]string{}
			schema("[]", "", platforms, known, reflect.ValueOf(new(Config)).Elem())
			everyKeyKnown(t, known, tree)
		}
		if doc := parseDocument(data); terr == nil && len(doc.faults) > 0 {
			t.Fatalf("refused TOML: %v", doc.faults)
		}
		if terr != nil {
			return
		}
		_, _, err = decodeText(string(data)+"\n[zz-added]\n", env, platforms)
		after := ""
		if err != nil {
			after = err.Error() + "\n"
		}
		for _, fault := range faults {
			if !strings.Contains(after, fault.String()+"\n") {
				t.Fatalf("lost beside another fault: %s", fault)
			}
		}
		if !strings.Contains(after, "zz-added: unknown table") {
			t.Fatalf("the added table is not found: %s", after)
		}
	})
}

// everyKeyKnown looks at an accepted file without the decoder.
func everyKeyKnown(t *testing.T, known map[string][]string, tree map[string]any) {
	t.Helper()
	all := map[string]bool{}
	for _, keys := range known {
		for _, k := range keys {
			all[k] = true
		}
	}
	named := map[string]bool{"models": true, "projects": true, "channels": true}
	var walk func(v any, names bool)
	walk = func(v any, names bool) {
		switch v := v.(type) {
		case map[string]any:
			for k, sub := range v {
				if !names && !all[k] {
					t.Fatalf("accepted the unknown key %q", k)
				}
				walk(sub, !names && named[k])
			}
		case []any:
			for _, sub := range v {
				walk(sub, false)
			}
		}
	}
	walk(tree, false)
}

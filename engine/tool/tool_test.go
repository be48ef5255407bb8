package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"trill/engine/sandbox"
)

var helper sandbox.Helper

func TestMain(m *testing.M) {
	helper = sandbox.Main()
	os.Setenv("TRILL_TEST_CANARY", "kanarienvogel")
	os.Exit(m.Run())
}

// workspace is a folder with files, and a secret beside it.
func workspace(t testing.TB, files map[string]string) Env {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(base, "ws")
	put(t, filepath.Join(base, "secret"), "kanarienvogel")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		put(t, filepath.Join(dir, name), text)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return Env{Root: root, Dir: dir}
}

func put(t testing.TB, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func get(t testing.TB, env Env, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(env.Dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// use calls a tool as the engine does.
func use(t testing.TB, tl Tool, env Env, args string) Result {
	t.Helper()
	fixed, err := Check(tl, json.RawMessage(args))
	if err != nil {
		t.Fatalf("%s %s: %v", tl.Spec().Name, args, err)
	}
	res, err := tl.Run(t.Context(), env, fixed)
	if err != nil {
		t.Fatalf("%s %s: %v", tl.Spec().Name, args, err)
	}
	return res
}

// asks writes arguments down.
func asks(pairs ...any) string {
	obj := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		obj[pairs[i].(string)] = pairs[i+1]
	}
	text, err := json.Marshal(obj)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func TestBuiltinToolsAreSortedAndDescribed(t *testing.T) {
	var names []string
	for _, tl := range Builtin(ShellConfig{}) {
		s := tl.Spec()
		names = append(names, s.Name)
		if len(s.Description) < 200 || !json.Valid(s.Schema) || !strings.Contains(string(s.Schema), `"additionalProperties":false`) {
			t.Errorf("%s: %q, %s", s.Name, s.Description, s.Schema)
		}
		if got := New(Spec{Name: "x"}, func(context.Context, Env, searchArgs) (Result, error) { return Result{}, nil }).Spec().Schema; s.Name == "search" && string(got) != string(s.Schema) {
			t.Errorf("the schema differs from one time to the next:\n%s\n%s", got, s.Schema)
		}
	}
	if want := []string{"edit_file", "list_dir", "read_file", "search", "shell", "write_file"}; !slices.Equal(names, want) {
		t.Errorf("tools are %v, want %v", names, want)
	}
}

type everything struct {
	Path  string   `json:"path"`
	Count int      `json:"count,omitempty"`
	Ratio float64  `json:"ratio,omitempty"`
	Force bool     `json:"force,omitempty"`
	Names []string `json:"names,omitempty"`
	Sub   struct {
		N int `json:"n"`
	} `json:"sub,omitzero"`
}

func TestArgumentsAreMended(t *testing.T) {
	v := New(Spec{Name: "x"}, func(context.Context, Env, everything) (Result, error) { return Result{}, nil }).(*typed[everything])
	for _, tc := range []struct{ args, want string }{
		{`{"path":"a","count":3}`, `{"path":"a","count":3}`},
		{`"{\"path\":\"a\"}"`, `{"path":"a"}`},
		{`"\"{\\\"path\\\":\\\"a\\\"}\""`, `{"path":"a"}`},
		{`{"path":"a","count":"3","ratio":" 0.5 "}`, `{"count":3,"path":"a","ratio":0.5}`},
		{`{"path":"a","count":3.0}`, `{"count":3,"path":"a"}`},
		{`{"path":"a","count":"1e3"}`, `{"count":1000,"path":"a"}`},
		{`{"path":7}`, `{"path":"7"}`},
		{`{"path":true}`, `{"path":"true"}`},
		{`{"path":"a","force":"True"}`, `{"force":true,"path":"a"}`},
		{`{"path":"a","names":"b"}`, `{"names":["b"],"path":"a"}`},
		{`{"path":"a","names":5}`, `{"names":["5"],"path":"a"}`},
		{`{"path":"a","names":[1,"b"]}`, `{"names":["1","b"],"path":"a"}`},
		{`{"path":"a","names":"[\"b\",\"c\"]"}`, `{"names":["b","c"],"path":"a"}`},
		{`{"path":"a","count":null,"force":null}`, `{"path":"a"}`},
		{`{"file_path":"a","count":1}`, `{"count":1,"path":"a"}`},
		{`{"path":"a","sub":"{\"n\":\"2\"}"}`, `{"path":"a","sub":{"n":2}}`},
		{`{"path":"<&>","count":"1"}`, `{"count":1,"path":"<&>"}`},
		{`{"path":"a","count":9007199254740993}`, `{"path":"a","count":9007199254740993}`},
	} {
		got, err := v.Validate(json.RawMessage(tc.args))
		if err != nil || string(got) != tc.want {
			t.Errorf("%s became %s, %v; want %s", tc.args, got, err, tc.want)
		}
	}
}

func TestWrongArgumentsAreExplained(t *testing.T) {
	v := New(Spec{Name: "x"}, func(context.Context, Env, everything) (Result, error) { return Result{}, nil }).(*typed[everything])
	for _, tc := range []struct {
		args string
		want []string
	}{
		{`{"path":`, []string{"not valid JSON", "at byte 8", "path (string, required)"}},
		{`{"path":"a"} {"path":"b"}`, []string{"not valid JSON"}},
		{`[1]`, []string{"a JSON array", "send one JSON object"}},
		{`"hello"`, []string{"not valid JSON"}},
		{``, []string{`field "path" is missing`, "count (integer)", "names (null or array)"}},
		{`{"file_path":"a","mode":"b"}`, []string{`field "path" is missing`, `no field "file_path"`, `no field "mode"`}},
		{`{"path":"a","count":"many"}`, []string{`field "count" must be an integer, not a string`}},
		{`{"path":{"a":1}}`, []string{`field "path" must be a string, not an object`}},
		{`{"path":"a","count":1.5}`, []string{"count", "integer"}},
		{`{"path":null}`, []string{`field "path" is missing`}},
		{`{"paths":["a"]}`, []string{`field "path" is missing`, `no field "paths"`}},
		{`{"path":"a","sub":{"m":1}}`, []string{"field sub", `"m"`}},
	} {
		got, err := v.Validate(json.RawMessage(tc.args))
		if err == nil {
			t.Errorf("%s was taken as %s", tc.args, got)
			continue
		}
		for _, w := range tc.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q does not say %q", tc.args, err, w)
			}
		}
	}
}

func TestForeignSchemas(t *testing.T) {
	spec := Spec{Name: "mcp", Schema: json.RawMessage(`{"type":"object","properties":{"a":{"anyOf":[{"type":"string"},{"type":"null"}]},"b":{"$ref":"#/$defs/n"},"c":{"type":["integer","null"]}},"$defs":{"n":{"type":"number"}}}`)}
	for args, ok := range map[string]bool{
		`{"a":null,"b":1,"c":null,"more":[1]}`: true, `{"b":"x"}`: false, `{"a":5}`: false, `{}`: true,
	} {
		if got, err := Validate(spec, json.RawMessage(args)); (err == nil) != ok || ok && string(got) != args {
			t.Errorf("%s: %s, %v", args, got, err)
		}
	}
	if _, err := Check(foreign{spec}, json.RawMessage(`{"b":"x"}`)); err == nil {
		t.Error("a tool without a validator of its own is not checked")
	}
	if _, err := Validate(Spec{Name: "bad", Schema: json.RawMessage(`{"type":5}`)}, json.RawMessage(`{}`)); err == nil {
		t.Error("a schema that is none was taken")
	}
}

// foreign is a tool that New did not make.
type foreign struct{ spec Spec }

func (f foreign) Spec() Spec                                                { return f.spec }
func (f foreign) Run(context.Context, Env, json.RawMessage) (Result, error) { return Result{}, nil }

func FuzzValidate(f *testing.F) {
	for _, s := range []string{`{"path":"a"}`, `"{\"path\":1}"`, `{"names":"x","path":"y"}`, `{"count":"1e400"}`, `nul`, `{"path":"\ud800"}`} {
		f.Add([]byte(s))
	}
	v := New(Spec{Name: "x"}, func(context.Context, Env, everything) (Result, error) { return Result{}, nil }).(*typed[everything])
	f.Fuzz(func(t *testing.T, args []byte) {
		got, err := v.Validate(args)
		if err != nil {
			return
		}
		again, err := v.Validate(got)
		if err != nil || string(again) != string(got) {
			t.Errorf("%q became %q and then %q, %v", args, got, again, err)
		}
		if res, err := v.Run(t.Context(), Env{}, got); err != nil || res.Failed {
			t.Errorf("%q became %q, which cannot be read: %v, %v", args, got, res, err)
		}
	})
}

func BenchmarkValidate(b *testing.B) {
	tl := EditFile()
	args := json.RawMessage(`{"path":"a","old":"b","new":"c"}`)
	b.Run("once", func(b *testing.B) {
		v, err := NewValidator(tl.Spec())
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			v.Validate(args)
		}
	})
	b.Run("each", func(b *testing.B) {
		for b.Loop() {
			Validate(tl.Spec(), args)
		}
	})
}

func TestReadFile(t *testing.T) {
	var long strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&long, "line %d\n", i+1)
	}
	env := workspace(t, map[string]string{
		"a.txt": "one\r\ntwo\n\nfour", "empty": "", "long.txt": long.String(), "wide.txt": strings.Repeat("ä", 3000) + "\nend\n",
		"x.png": "\x89PNG\r\n\x1a\n\x00\x00", "zero": "a\x00b", "latin": "caf\xe9\n", "u16": "\xff\xfea\x00", "d/f": "", "elf": "\x7fELF\x02\x01\x01\x00",
	})
	for _, tc := range []struct {
		args, want string
		failed     bool
	}{
		{`{"path":"a.txt"}`, "     1\tone\n     2\ttwo\n     3\t\n     4\tfour", false},
		{`{"path":"./d/../a.txt","offset":2,"limit":1}`, "     2\ttwo\n[lines 2 to 2 of 4; go on with offset 3]", false},
		{`{"path":"a.txt","offset":4}`, "     4\tfour\n[lines 4 to 4 of 4, the end]", false},
		{asks("path", env.Dir+"/a.txt", "limit", 1), "     1\tone\n[lines 1 to 1 of 4; go on with offset 2]", false},
		{`{"path":"a.txt","offset":9}`, `Cannot read "a.txt" from line 9: it has 4 lines.`, true},
		{`{"path":"empty"}`, "(the file is empty)", false},
		{`{"path":"latin"}`, "     1\tcaf\uFFFD", false},
		{`{"path":"x.png"}`, `Cannot read "x.png": it is not text but image/png.`, true},
		{`{"path":"zero"}`, `Cannot read "zero": it is not text but application/octet-stream.`, true},
		{`{"path":"u16"}`, `Cannot read "u16": it is not text but UTF-16 text.`, true},
		{`{"path":"elf"}`, `Cannot read "elf": it is not text but ELF program.`, true},
		{`{"path":"d"}`, `Cannot read "d": it is a folder, not a file. Use list_dir to see what is in it.`, true},
		{`{"path":"no/such"}`, `Cannot read "no/such": there is no such file or folder.`, true},
		{`{"path":"a.txt/b"}`, `Cannot read "a.txt/b": a part of the path is a file, not a folder.`, true},
	} {
		got := use(t, ReadFile(), env, tc.args)
		if diff := cmp.Diff(Result{tc.want, tc.failed}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.args, diff)
		}
	}
	got := use(t, ReadFile(), env, `{"path":"long.txt"}`).Text
	if !strings.HasSuffix(got, "  2000\tline 2000\n[lines 1 to 2000 of 5000; go on with offset 2001]") {
		t.Errorf("long file ends with %q", got[len(got)-100:])
	}
	got = use(t, ReadFile(), env, `{"path":"wide.txt"}`).Text
	if want := fmt.Sprintf("     1\t%s [... 4000 more bytes in this line]\n     2\tend", strings.Repeat("ä", 1000)); got != want {
		t.Errorf("wide line is shown as %q", got)
	}
}

func TestListDir(t *testing.T) {
	env := workspace(t, map[string]string{"b.txt": "12345", "a/x/deep": "", "a/y": "", ".git/config": "", ".hidden": ""})
	for name, to := range map[string]string{"in": "a/y", "out": "/etc/passwd", "up": "../secret"} {
		if err := os.Symlink(to, filepath.Join(env.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct{ args, want string }{
		{`{}`, ".hidden (0 B)\na/\nb.txt (5 B)\nin -> a/y\nout -> (outside the workspace)\nup -> (outside the workspace)"},
		{`{"path":"a","depth":2}`, "a/x/\na/x/deep (0 B)\na/y (0 B)"},
		{`{"path":"b.txt"}`, `Cannot list "b.txt": it is a file, not a folder; use read_file.`},
		{`{"path":"nowhere"}`, `Cannot list "nowhere": there is no such file or folder.`},
	} {
		if got := use(t, ListDir(), env, tc.args).Text; got != tc.want {
			t.Errorf("%s shows\n%s\nwant\n%s", tc.args, got, tc.want)
		}
	}
	for i := range listEntries + 10 {
		put(t, filepath.Join(env.Dir, "many", fmt.Sprint(i)), "")
	}
	got := use(t, ListDir(), env, `{"path":"many"}`).Text
	if n := strings.Count(got, "\n"); n != listEntries || !strings.Contains(got, "only 1000 entries") {
		t.Errorf("a big folder shows %d lines ending in %q", n, got[len(got)-80:])
	}
}

func TestSearch(t *testing.T) {
	env := workspace(t, map[string]string{
		"a.go": "package a\nfunc A() {}\n", "src/b.ts": "func b\r\n// Func C\n", "src/deep/c.tsx": "func c", "bin": "func\x00", ".git/x": "func g", "node_modules/m.js": "func m",
		"wide": strings.Repeat("x", 5000) + "needle" + strings.Repeat("y", 5000),
	})
	for _, tc := range []struct{ args, want string }{
		{`{"pattern":"^func"}`, "a.go:2:func A() {}\nsrc/b.ts:1:func b\nsrc/deep/c.tsx:1:func c"},
		{`{"pattern":"(?i)func [a-c]","glob":"*.{ts,tsx}"}`, "src/b.ts:1:func b\nsrc/b.ts:2:// Func C\nsrc/deep/c.tsx:1:func c"},
		{`{"pattern":"func","glob":"src/**/*.ts*","path":"src"}`, "src/b.ts:1:func b\nsrc/deep/c.tsx:1:func c"},
		{`{"pattern":"func","path":"a.go"}`, "a.go:2:func A() {}"},
		{`{"pattern":"func","path":"node_modules"}`, "node_modules/m.js:1:func m"},
		{`{"pattern":"func","max":1}`, "a.go:2:func A() {}\n[the first 1 matches are shown, there are more; narrow it with path, glob or a longer pattern]"},
		{`{"pattern":"","glob":"*.t*"}`, "src/b.ts\nsrc/deep/c.tsx"},
		{`{"pattern":"nothing here"}`, "No matches in 5 files."},
		{`{"pattern":"x","path":"gone"}`, `Cannot search "gone": there is no such file or folder.`},
	} {
		if got := use(t, Search(), env, tc.args).Text; got != tc.want {
			t.Errorf("%s shows\n%s\nwant\n%s", tc.args, got, tc.want)
		}
	}
	if got := use(t, Search(), env, `{"pattern":"needle"}`).Text; len(got) > 400 || !strings.Contains(got, "xneedley") {
		t.Errorf("a wide line is shown as %q", got)
	}
	if got := use(t, Search(), env, `{"pattern":"(?=x)"}`); !got.Failed || !strings.Contains(got.Text, "RE2") {
		t.Errorf("look-ahead: %v", got)
	}
	// A71: no pattern takes for ever.
	put(t, filepath.Join(env.Dir, "aaa"), strings.Repeat("a", 50_000)+"!")
	if got := use(t, Search(), env, `{"pattern":"^(a+)+$","path":"aaa"}`).Text; got != "No matches in 1 files." {
		t.Errorf("hostile pattern: %q", got)
	}
	for name, lim := range map[string]searchLimits{
		"stopped after 2 files": {files: 2, bytes: 1 << 20, file: 1 << 20, time: 1 << 40},
		"stopped after 10 B":    {files: 200, bytes: 10, file: 1 << 20, time: 1 << 40},
		"were left out":         {files: 200, bytes: 1 << 20, file: 1000, time: 1 << 40},
		"stopped after 0s":      {files: 200, bytes: 1 << 20, file: 1 << 20},
	} {
		got, err := search(t.Context(), env, searchArgs{Pattern: "zzz"}, lim)
		if err != nil || !strings.Contains(got.Text, name) {
			t.Errorf("limit %q: %q, %v", name, got.Text, err)
		}
	}
}

func TestWriteFile(t *testing.T) {
	env := workspace(t, map[string]string{"run.sh": "old"})
	if err := os.Chmod(filepath.Join(env.Dir, "run.sh"), 0o750); err != nil {
		t.Fatal(err)
	}
	if got := use(t, WriteFile(), env, `{"path":"new/deep/a","content":"hello\n"}`); got.Failed || got.Text != "Wrote new/deep/a (6 B)." {
		t.Errorf("new file: %v", got)
	}
	if got := get(t, env, "new/deep/a"); got != "hello\n" {
		t.Errorf("it holds %q", got)
	}
	if got := use(t, WriteFile(), env, `{"path":"run.sh","content":"new"}`); got.Text != "Wrote run.sh (3 B, before 3 B)." {
		t.Errorf("overwrite: %v", got)
	}
	if st, err := os.Stat(filepath.Join(env.Dir, "run.sh")); err != nil || st.Mode().Perm() != 0o750 {
		t.Errorf("mode is %v, %v", st.Mode(), err)
	}
	if got := use(t, WriteFile(), env, asks("path", "big", "content", strings.Repeat("x", writeBytes+1))); !got.Failed || !strings.Contains(got.Text, "1.0 MiB") {
		t.Errorf("too big: %v", got)
	}
	if got := use(t, WriteFile(), env, `{"path":"new","content":""}`); !got.Failed || !strings.Contains(got.Text, "a folder") {
		t.Errorf("a folder: %v", got)
	}
	noTempFiles(t, env)
}

func noTempFiles(t *testing.T, env Env) {
	t.Helper()
	err := filepath.WalkDir(env.Dir, func(name string, _ os.DirEntry, err error) error {
		if strings.Contains(name, ".trill-") {
			t.Errorf("%s is left", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestEditFile(t *testing.T) {
	for _, tc := range []struct {
		name, before, old, new string
		all                    bool
		after, says            string
	}{
		{"once", "a\nb\nc\nd\n", "b\n", "B\nBB\n", false, "a\nB\nBB\nc\nd\n", "It now reads:\n     1\ta\n     2\tB\n     3\tBB\n     4\tc\n     5\td"},
		{"delete", "abc", "b", "", false, "ac", "Edited f"},
		{"keeps CRLF", "a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\n", false, "x\r\ny\r\nc\r\n", "Edited f"},
		{"keeps BOM", "\ufeffa b", "a", "c", false, "\ufeffc b", "Edited f"},
		{"twice", "x\ny\nx\n", "x", "z", false, "", "2 times, at lines 1, 3"},
		{"all", "x\ny\nx\n", "x", "z", true, "z\ny\nz\n", "2 places, at lines 1, 3"},
		{"white space", "if a {\n\t\tb()\n}\n", "if a {\n    b()\n}\n", "", false, "", "other white space, at line 1:\n     1\tif a {\n     2\t\t\tb()\n     3\t}"},
		{"close", "alpha beta gamma\nother\n", "alpha beta gama", "x", false, "", "closest is, at line 1:\n     1\talpha beta gamma"},
		{"nowhere", "alpha\n", "zzzzzz", "x", false, "", "Nothing in it looks similar"},
		{"same", "a", "a", "a", false, "", "are the same"},
		{"empty old", "a", "", "b", false, "", "old is empty"},
		{"binary", "a\x00b", "a", "b", false, "", "not text"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			env := workspace(t, map[string]string{"f": tc.before})
			got := use(t, EditFile(), env, asks("path", "f", "old", tc.old, "new", tc.new, "all", tc.all))
			want := tc.after
			if fails := want == ""; fails {
				want = tc.before
				if !got.Failed {
					t.Error("it did not fail")
				}
			} else if got.Failed {
				t.Error("it failed")
			}
			if !strings.Contains(got.Text, tc.says) {
				t.Errorf("it says %q, want %q in it", got.Text, tc.says)
			}
			if have := get(t, env, "f"); have != want {
				t.Errorf("the file holds %q, want %q", have, want)
			}
			noTempFiles(t, env)
		})
	}
	env := workspace(t, nil)
	if got := use(t, EditFile(), env, `{"path":"none","old":"a","new":"b"}`); !strings.Contains(got.Text, "no such file") {
		t.Errorf("missing file: %v", got)
	}
}

func TestEditDoesNotOverwriteWhatChangedMeanwhile(t *testing.T) {
	env := workspace(t, map[string]string{"f": "mine"})
	dir, base, info, err := writable(env, "f")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	put(t, filepath.Join(env.Dir, "f"), "theirs")
	if err := replace(dir, base, []byte("edited"), info, []byte("mine")); !errors.Is(err, errChanged) {
		t.Errorf("changed file: %v", err)
	}
	if err := replace(dir, base, []byte("edited"), nil, nil); !errors.Is(err, errChanged) {
		t.Errorf("file that came: %v", err)
	}
	if got := get(t, env, "f"); got != "theirs" {
		t.Errorf("it holds %q", got)
	}
	noTempFiles(t, env)
}

func FuzzEdit(f *testing.F) {
	f.Add("a\r\nb", "a\nb", "c", true)
	f.Add("x\ny\n", " y", "", false)
	f.Fuzz(func(t *testing.T, text, old, repl string, all bool) {
		if len(text) > 10_000 {
			t.Skip()
		}
		env := workspace(t, map[string]string{"f": text})
		res, err := editFile(t.Context(), env, editFileArgs{Path: "f", Old: old, New: repl, All: all})
		if err != nil {
			t.Fatal(err)
		}
		after := get(t, env, "f")
		if res.Failed && after != text {
			t.Errorf("it failed with %q, but %q became %q", res.Text, text, after)
		}
		if want := strings.ReplaceAll(text, old, repl); !res.Failed && after != want && !strings.Contains(text, "\r\n") {
			t.Errorf("%q became %q, want %q", text, after, want)
		}
	})
}

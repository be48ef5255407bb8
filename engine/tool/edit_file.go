package tool

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

//go:embed edit_file.md
var editFileText string

const (
	editBytes = 4 << 20 // of a file that can be edited
	editNear  = 20_000  // lines that are compared for a hint
)

type editFileArgs struct {
	Path string `json:"path" jsonschema:"the file, relative to the workspace"`
	Old  string `json:"old" jsonschema:"the text to replace, exactly as it is in the file, with enough lines around it to be there once"`
	New  string `json:"new" jsonschema:"the text to put there; empty deletes"`
	All  bool   `json:"all,omitempty" jsonschema:"replace every place where old is; default only one, and it must be the only one"`
}

// EditFile returns the tool that replaces a text in a file.
func EditFile() Tool {
	return New(Spec{Name: "edit_file", Description: editFileText}, editFile)
}

func editFile(_ context.Context, env Env, a editFileArgs) (Result, error) {
	if a.Old == "" {
		return refuse("edit", a.Path, errMessage("old is empty; give the text to replace, or use write_file for a new file")), nil
	}
	if a.Old == a.New {
		return refuse("edit", a.Path, errMessage("old and new are the same")), nil
	}
	name, err := place(env, a.Path)
	if err != nil {
		return refuse("edit", a.Path, err), nil
	}
	dir, base, info, err := writable(env, name)
	if err == nil && info == nil {
		dir.Close()
		err = fs.ErrNotExist
	}
	if err != nil {
		return refuse("edit", a.Path, err), nil
	}
	defer dir.Close()
	text, err := readWhole(dir, base, editBytes)
	if err != nil {
		return refuse("edit", a.Path, err), nil
	}
	if kind := binaryKind(text[:min(len(text), sniffed)]); kind != "" {
		return refuse("edit", a.Path, errMessage("it is not text but "+kind)), nil
	}
	old, repl := []byte(a.Old), []byte(a.New)
	n := bytes.Count(text, old)
	if n == 0 && bytes.Contains(text, []byte("\r\n")) {
		// The model sees and writes plain line ends; the file has others.
		old, repl = toCRLF(old), toCRLF(repl)
		n = bytes.Count(text, old)
	}
	switch {
	case n == 0:
		return refuse("edit", a.Path, errMessage("old is not in it. "+nearest(string(text), a.Old))), nil
	case n > 1 && !a.All:
		return refuse("edit", a.Path, errMessage(fmt.Sprintf("old is in it %d times, at lines %s; add lines around it until it is there once, or set all",
			n, lineNumbers(text, old)))), nil
	}
	edited := bytes.ReplaceAll(text, old, repl)
	if len(edited) > editBytes {
		return refuse("edit", a.Path, errMessage("it would become larger than "+size(editBytes))), nil
	}
	if err := replace(dir, base, edited, info, text); err != nil {
		if errors.Is(err, errChanged) {
			return refuse("edit", a.Path, errChanged), nil
		}
		return refuse("edit", a.Path, err), nil
	}
	if n > 1 {
		return Result{Text: fmt.Sprintf("Edited %s: %d places, at lines %s.", slashed(name), n, lineNumbers(text, old))}, nil
	}
	at := bytes.Index(text, old)
	return Result{Text: fmt.Sprintf("Edited %s. It now reads:\n%s", slashed(name), around(edited, at, at+len(repl)))}, nil
}

func toCRLF(b []byte) []byte {
	b = bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n"))
	return bytes.ReplaceAll(b, []byte("\n"), []byte("\r\n"))
}

// lineNumbers lists the lines where the first few places of old begin.
func lineNumbers(text, old []byte) string {
	var out []string
	line, from := 1, 0
	for {
		at := bytes.Index(text[from:], old)
		if at < 0 {
			break
		}
		if len(out) == 10 {
			out = append(out, "...")
			break
		}
		line += bytes.Count(text[from:from+at], []byte("\n"))
		out = append(out, fmt.Sprint(line))
		line += bytes.Count(old, []byte("\n"))
		from += at + len(old)
	}
	return strings.Join(out, ", ")
}

// around shows the lines of a change with two more on each side; of a long change
// its ends.
func around(text []byte, from, to int) string {
	lines := strings.Split(string(text), "\n")
	first := bytes.Count(text[:from], []byte("\n"))
	last := first + bytes.Count(text[from:to], []byte("\n"))
	return numbered(lines, max(first-2, 0), min(last+2, len(lines)-1))
}

// numbered shows lines i to j as read_file does, at most 30 of them.
func numbered(lines []string, i, j int) string {
	if j == len(lines)-1 && lines[j] == "" && j > i {
		j-- // the end of the last line is not one more
	}
	var out []string
	for k := i; k <= j; k++ {
		if j-i >= 30 && k == i+15 {
			out = append(out, "       ...")
			k = j - 14
		}
		out = append(out, fmt.Sprintf("%6d\t%s", k+1, strings.ToValidUTF8(clipText(strings.TrimSuffix(lines[k], "\r"), 300), "\uFFFD")))
	}
	return strings.Join(out, "\n")
}

// nearest shows the lines of a text that come closest to what was looked for.
func nearest(text, old string) string {
	have := strings.Split(text, "\n")
	want := strings.Split(strings.Trim(old, "\r\n"), "\n")
	for i := range want {
		want[i] = squeeze(want[i])
	}
	lines := min(len(have), editNear)
	squeezed := make([]string, lines)
	for i := range squeezed {
		squeezed[i] = squeeze(have[i])
	}
	n := min(len(want), 50)
	best, at := 0.0, -1
	for i := range squeezed {
		score := 0.0
		for j := 0; j < n && i+j < lines; j++ {
			score += alike(squeezed[i+j], want[j])
		}
		if score /= float64(n); score > best {
			best, at = score, i
		}
	}
	if best < 0.5 {
		return "Nothing in it looks similar; read it again"
	}
	hint := "The closest is"
	if best == 1 {
		hint = "The same is there with other white space"
	}
	return fmt.Sprintf("%s, at line %d:\n%s\nTake the text from there", hint, at+1, numbered(have, at, min(at+len(want)-1, len(have)-1)))
}

func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }

// alike says how similar two lines are, from 0 to 1, by the pairs of bytes they
// share.
func alike(a, b string) float64 {
	if a == b {
		return 1
	}
	a, b = a[:min(len(a), 500)], b[:min(len(b), 500)]
	if len(a) < 2 || len(b) < 2 {
		return 0
	}
	if s, l := min(len(a), len(b)), max(len(a), len(b)); s*3 < l {
		return 0
	}
	pairs := make(map[[2]byte]int, len(a))
	for i := range len(a) - 1 {
		pairs[[2]byte{a[i], a[i+1]}]++
	}
	shared := 0
	for i := range len(b) - 1 {
		if p := [2]byte{b[i], b[i+1]}; pairs[p] > 0 {
			pairs[p]--
			shared++
		}
	}
	return 2 * float64(shared) / float64(len(a)+len(b)-2)
}

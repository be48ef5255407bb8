package tool

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

//go:embed read_file.md
var readFileText string

const (
	readLines   = 2000     // lines of one call
	readLine    = 2000     // bytes of a line
	readBytes   = 64 << 10 // bytes of one call
	readScanned = 64 << 20 // bytes read to find a place in a file
)

type readFileArgs struct {
	Path   string `json:"path" jsonschema:"the file, relative to the workspace"`
	Offset int    `json:"offset,omitempty" jsonschema:"the first line to show, counted from 1; default 1"`
	Limit  int    `json:"limit,omitempty" jsonschema:"how many lines to show; default and most 2000"`
}

// ReadFile returns the tool that shows a text file with line numbers.
func ReadFile() Tool {
	return New(Spec{Name: "read_file", Description: readFileText, ReadOnly: true}, readFile)
}

func readFile(ctx context.Context, env Env, a readFileArgs) (Result, error) {
	name, err := place(env, a.Path)
	if err != nil {
		return refuse("read", a.Path, err), nil
	}
	f, _, err := openFile(env.Root, name)
	if err != nil {
		res := refuse("read", a.Path, err)
		if info, err := env.Root.Stat(name); err == nil && info.IsDir() {
			res.Text += " Use list_dir to see what is in it."
		}
		return res, nil
	}
	defer f.Close()
	in := bufio.NewReaderSize(io.LimitReader(f, readScanned), 64<<10)
	head, err := in.Peek(sniffed)
	if err != nil && !errors.Is(err, io.EOF) {
		return refuse("read", a.Path, err), nil
	}
	if len(head) == 0 {
		return Result{Text: "(the file is empty)"}, nil
	}
	if kind := binaryKind(head); kind != "" {
		return refuse("read", a.Path, errMessage("it is not text but "+kind)), nil
	}
	first := max(a.Offset, 1)
	limit := min(max(a.Limit, 0), readLines)
	if limit == 0 {
		limit = readLines
	}
	var out strings.Builder
	shown, total, full := 0, 0, false
	for {
		if total%4096 == 0 && ctx.Err() != nil {
			return Result{}, ctx.Err()
		}
		line, rest, err := readOne(in)
		if err != nil {
			break
		}
		total++
		if total < first || shown == limit || full {
			continue
		}
		if full = shown > 0 && out.Len()+len(line) > readBytes; full {
			continue
		}
		shown++
		fmt.Fprintf(&out, "%6d\t%s", total, strings.ToValidUTF8(string(line), "\uFFFD"))
		if rest > 0 {
			fmt.Fprintf(&out, " [... %d more bytes in this line]", rest)
		}
		out.WriteByte('\n')
	}
	last := first + shown - 1
	lines := fmt.Sprint(total)
	if n, _ := f.Seek(0, io.SeekCurrent); n >= readScanned {
		lines = "more than " + lines
	}
	switch {
	case shown == 0:
		return Failure(fmt.Sprintf("Cannot read %q from line %d: it has %s lines.", clipText(a.Path, 200), first, lines)), nil
	case last < total:
		fmt.Fprintf(&out, "[lines %d to %d of %s; go on with offset %d]", first, last, lines, last+1)
	case first > 1:
		fmt.Fprintf(&out, "[lines %d to %d of %s, the end]", first, last, lines)
	}
	return Result{Text: strings.TrimSuffix(out.String(), "\n")}, nil
}

// readOne reads one line without its end, and counts what is beyond the longest
// that is shown.
func readOne(in *bufio.Reader) (line []byte, rest int, err error) {
	for {
		part, err := in.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) && len(part) == 0 && line == nil {
			return nil, 0, err
		}
		done := err == nil || !errors.Is(err, bufio.ErrBufferFull)
		if err == nil {
			part = part[:len(part)-1]
			if n := len(part); n > 0 && part[n-1] == '\r' {
				part = part[:n-1]
			}
		}
		take := min(len(part), readLine-len(line))
		for take > 0 && take < len(part) && !utf8.RuneStart(part[take]) {
			take--
		}
		line = append(line, part[:take]...)
		rest += len(part) - take
		if line == nil {
			line = []byte{}
		}
		if done {
			return line, rest, nil
		}
	}
}

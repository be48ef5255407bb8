package tool

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"trill/engine/internal/fnmatch"
)

//go:embed search.md
var searchText string

const (
	searchMatches = 100 // shown when the model does not say
	searchMost    = 1000
	searchLine    = 300      // bytes of a line that are shown
	searchOut     = 64 << 10 // bytes of one answer
	searchPattern = 1000     // bytes of a pattern
)

type searchArgs struct {
	Pattern string `json:"pattern" jsonschema:"the regular expression to look for in each line (RE2 syntax); empty lists the files that match glob"`
	Path    string `json:"path,omitempty" jsonschema:"the folder or file to search, relative to the workspace; default all of it"`
	Glob    string `json:"glob,omitempty" jsonschema:"only files whose name, or path if the glob has a slash, matches: *.go, src/**/*.{ts,tsx}"`
	Max     int    `json:"max,omitempty" jsonschema:"how many matching lines to show; default 100, most 1000"`
}

// Search returns the tool that looks for a pattern in the workspace's files.
func Search() Tool {
	return New(Spec{Name: "search", Description: searchText, ReadOnly: true}, func(ctx context.Context, env Env, a searchArgs) (Result, error) {
		return search(ctx, env, a, searchLimits{files: 20_000, bytes: 256 << 20, file: 4 << 20, time: 10 * time.Second})
	})
}

// searchLimits is what one search may cost.
type searchLimits struct {
	files int
	bytes int64 // of all files
	file  int64 // of one; larger ones are left out
	time  time.Duration
}

func search(ctx context.Context, env Env, a searchArgs, lim searchLimits) (Result, error) {
	if len(a.Pattern) > searchPattern {
		return Failure(fmt.Sprintf("The pattern has %d bytes, more than %d.", len(a.Pattern), searchPattern)), nil
	}
	re, err := regexp.Compile(a.Pattern)
	if err != nil {
		return Failure(fmt.Sprintf("The pattern is no regular expression in RE2 syntax: %v. Look-around and back-references do not exist there; a backslash makes a special character plain.",
			strings.TrimPrefix(err.Error(), "error parsing regexp: "))), nil
	}
	p := cmp.Or(a.Path, ".")
	name, err := place(env, p)
	if err != nil {
		return refuse("search", p, err), nil
	}
	info, err := env.Root.Stat(name)
	if err != nil {
		return refuse("search", p, err), nil
	}
	limited, cancel := context.WithTimeout(ctx, lim.time)
	defer cancel()
	s := searcher{
		ctx: limited, root: env.Root, re: re, lim: lim,
		globs: braces(a.Glob), max: min(cmp.Or(max(a.Max, 0), searchMatches), searchMost),
	}
	if info.IsDir() {
		err = s.folder(name)
	} else {
		err = s.file(name)
	}
	switch {
	case ctx.Err() != nil:
		return Result{}, ctx.Err()
	case limited.Err() != nil:
		s.end = fmt.Sprintf("stopped after %v", lim.time)
	case err != nil && !errors.Is(err, errEnough):
		return refuse("search", p, err), nil
	}
	return Result{Text: s.text()}, nil
}

// errEnough ends a search.
var errEnough = errors.New("enough")

type searcher struct {
	ctx   context.Context // of this one call
	root  *os.Root
	re    *regexp.Regexp
	lim   searchLimits
	globs []string
	max   int

	out     strings.Builder
	found   int
	files   int
	bytes   int64
	skipped int    // files too large
	end     string // why it ended before its time
}

func (s *searcher) text() string {
	if s.found == 0 {
		fmt.Fprintf(&s.out, "No matches in %d files.\n", s.files)
	}
	if s.end != "" {
		fmt.Fprintf(&s.out, "[%s; narrow it with path, glob or a longer pattern]\n", s.end)
	}
	if s.skipped > 0 {
		fmt.Fprintf(&s.out, "[%d files larger than %s were left out]\n", s.skipped, size(s.lim.file))
	}
	return strings.TrimSuffix(s.out.String(), "\n")
}

func (s *searcher) stop(why string, args ...any) error {
	s.end = fmt.Sprintf(why, args...)
	return errEnough
}

func (s *searcher) folder(name string) error {
	entries, more, err := readDir(s.root, name)
	if err != nil {
		return err
	}
	for _, e := range entries {
		full := filepath.Join(name, e.Name())
		switch {
		case s.ctx.Err() != nil:
			return errEnough
		case e.IsDir() && (e.Name() == ".git" || e.Name() == "node_modules"):
			continue
		case e.IsDir():
			err = s.folder(full)
		case e.Type().IsRegular() && s.wanted(full): // links are found where they point
			err = s.file(full)
		default:
			continue
		}
		if errors.Is(err, errEnough) {
			return err
		}
	}
	if more {
		return s.stop("a folder has more than %d entries", listFolder)
	}
	return nil
}

// wanted reports whether the file is one of those asked for.
func (s *searcher) wanted(name string) bool {
	if len(s.globs) == 0 {
		return true
	}
	full := slashed(name)
	for _, g := range s.globs {
		text := full
		if !strings.Contains(g, "/") {
			text = path.Base(full)
		}
		if fnmatch.Match(strings.ReplaceAll(strings.TrimPrefix(g, "/"), "**/", "*"), text) {
			return true
		}
	}
	return false
}

func (s *searcher) file(name string) error {
	f, info, err := openFile(s.root, name)
	if err != nil {
		return err
	}
	defer f.Close()
	if info.Size() > s.lim.file {
		s.skipped++
		return nil
	}
	s.files++
	s.bytes += info.Size()
	if s.files > s.lim.files {
		return s.stop("stopped after %d files", s.lim.files)
	}
	if s.bytes > s.lim.bytes {
		return s.stop("stopped after %s", size(s.lim.bytes))
	}
	if s.re.String() == "" {
		return s.match("%s\n", show(slashed(name)))
	}
	text := make([]byte, info.Size())
	n, err := io.ReadFull(f, text)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) { // it may have become shorter
		return err
	}
	text = text[:n]
	if binaryKind(text[:min(n, sniffed)]) != "" {
		return nil
	}
	number := 0
	for line := range bytes.Lines(text) {
		number++
		if number%1024 == 0 && s.ctx.Err() != nil {
			return errEnough
		}
		line = bytes.TrimRight(line, "\r\n")
		if !s.re.Match(line) {
			continue
		}
		if err := s.match("%s:%d:%s\n", show(slashed(name)), number, s.cut(line)); err != nil {
			return err
		}
	}
	return nil
}

// match adds one line to the answer.
func (s *searcher) match(format string, args ...any) error {
	if s.found == s.max || s.out.Len() > searchOut {
		return s.stop("the first %d matches are shown, there are more", s.found)
	}
	s.found++
	fmt.Fprintf(&s.out, format, args...)
	return nil
}

// cut shows the part of a long line around its match.
func (s *searcher) cut(line []byte) string {
	text := string(line)
	if len(text) > searchLine {
		at := s.re.FindIndex(line)[0]
		if start := at - searchLine/3; start > 0 {
			text = "..." + string(line[start:])
		}
		text = clipText(text, searchLine)
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// braces writes a{b,c} out as ab and ac, for the first few.
func braces(glob string) []string {
	if glob == "" {
		return nil
	}
	out := []string{glob}
	for range 4 {
		var next []string
		for _, g := range out {
			head, rest, ok := strings.Cut(g, "{")
			inner, tail, closed := strings.Cut(rest, "}")
			if !ok || !closed {
				next = append(next, g)
				continue
			}
			for part := range strings.SplitSeq(inner, ",") {
				next = append(next, head+part+tail)
			}
		}
		if out = next; len(out) > 64 {
			return out[:64]
		}
	}
	return out
}

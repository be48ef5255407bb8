package tool

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed list_dir.md
var listDirText string

const (
	listEntries = 1000   // shown by one call
	listFolder  = 10_000 // read of one folder
	listDepth   = 8
)

type listDirArgs struct {
	Path  string `json:"path,omitempty" jsonschema:"the folder, relative to the workspace; default the workspace itself"`
	Depth int    `json:"depth,omitempty" jsonschema:"how many levels to show; default 1, most 8"`
}

// ListDir returns the tool that lists folders.
func ListDir() Tool {
	return New(Spec{Name: "list_dir", Description: listDirText, ReadOnly: true}, listDir)
}

func listDir(ctx context.Context, env Env, a listDirArgs) (Result, error) {
	p := cmp.Or(a.Path, ".")
	name, err := place(env, p)
	if err != nil {
		return refuse("list", p, err), nil
	}
	l := lister{ctx: ctx, root: env.Root, depth: min(max(a.Depth, 1), listDepth)}
	if err := l.list(name, 1); err != nil {
		if ctx.Err() != nil {
			return Result{}, ctx.Err()
		}
		return refuse("list", p, err), nil
	}
	if l.shown == 0 {
		return Result{Text: "(the folder is empty)"}, nil
	}
	if l.more {
		fmt.Fprintf(&l.out, "[only %d entries are shown; list a folder further down, or use search]\n", l.shown)
	}
	return Result{Text: strings.TrimSuffix(l.out.String(), "\n")}, nil
}

type lister struct {
	ctx   context.Context // of this one call
	root  *os.Root
	depth int
	out   strings.Builder
	shown int
	more  bool
}

// list shows the entries of a folder. Only the first one's error matters: what
// is further down may have gone meanwhile.
func (l *lister) list(name string, level int) error {
	entries, more, err := readDir(l.root, name)
	if err != nil {
		return err
	}
	l.more = l.more || more
	for _, e := range entries {
		if l.ctx.Err() != nil {
			return l.ctx.Err()
		}
		if l.shown == listEntries {
			l.more = true
			return nil
		}
		if e.IsDir() && e.Name() == ".git" {
			continue
		}
		l.shown++
		full := path.Join(slashed(name), e.Name())
		switch {
		case e.IsDir():
			fmt.Fprintf(&l.out, "%s/\n", show(full))
			if level < l.depth {
				if err := l.list(filepath.Join(name, e.Name()), level+1); l.ctx.Err() != nil {
					return err
				}
			}
		case e.Type()&fs.ModeSymlink != 0:
			fmt.Fprintf(&l.out, "%s -> %s\n", show(full), l.target(name, e.Name()))
		case !e.Type().IsRegular():
			fmt.Fprintf(&l.out, "%s (%s)\n", show(full), kindName(e.Type()))
		default:
			text := "?"
			if info, err := e.Info(); err == nil {
				text = size(info.Size())
			}
			fmt.Fprintf(&l.out, "%s (%s)\n", show(full), text)
		}
	}
	return nil
}

// target shows where a link points, unless that is outside.
func (l *lister) target(dir, base string) string {
	to, err := l.root.Readlink(filepath.Join(dir, base))
	if err != nil || filepath.IsAbs(to) || !filepath.IsLocal(filepath.Join(dir, to)) {
		return "(outside the workspace)"
	}
	return show(to)
}

// show keeps a name to its line.
func show(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fmt.Sprintf("%q", name)
	}
	return name
}

// readDir returns the entries of a folder by name, and whether there are more.
func readDir(r *os.Root, name string) ([]fs.DirEntry, bool, error) {
	info, err := r.Stat(name)
	if err != nil {
		return nil, false, err
	}
	if !info.IsDir() {
		return nil, false, errMessage("it is a file, not a folder; use read_file")
	}
	f, err := r.Open(name)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	entries, err := f.ReadDir(listFolder)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, len(entries) == listFolder, nil
}

//go:build unix

package tool

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// T1, A58, A59: what leads out of the workspace is refused, and the answer does
// not show where the workspace is.
func TestFileToolsStayInTheWorkspace(t *testing.T) {
	env := workspace(t, map[string]string{"a/f": "x"})
	for name, to := range map[string]string{
		"root": "/", "env": "/proc/self/environ", "up": "../secret", "a/up": "../../secret", "loop": "loop", "abs": env.Dir + "/../secret", "dirup": "..",
	} {
		if err := os.Symlink(to, filepath.Join(env.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{
		"../secret", "../../etc/passwd", "/etc/passwd", "a/../../secret", "file:///etc/passwd", "a\x00b", strings.Repeat("x/", 2500), "~", "~/x", "", "..",
		env.Dir + "/../secret", env.Dir + "x/secret", "root/etc/passwd", "root", "env", "up", "a/up", "loop", "abs", "dirup/secret", strings.Repeat("y", 300),
	} {
		for _, tc := range []struct {
			tool Tool
			args string
		}{
			{ReadFile(), asks("path", p)},
			{ListDir(), asks("path", p)},
			{Search(), asks("path", p, "pattern", "kanarien")},
			{WriteFile(), asks("path", p, "content", "overwritten")},
			{WriteFile(), asks("path", p+"/new", "content", "overwritten")},
			{EditFile(), asks("path", p, "old", "k", "new", "overwritten")},
		} {
			name := tc.tool.Spec().Name
			if p == "" && (name != "read_file" && name != "edit_file") {
				continue // the workspace itself
			}
			if p == strings.Repeat("x/", 2500) && strings.HasSuffix(tc.args, `/new"}`) {
				continue
			}
			got := use(t, tc.tool, env, tc.args)
			if !got.Failed {
				t.Errorf("%s %q: gave %q", name, p, got.Text)
			}
			text := strings.ReplaceAll(got.Text, p, "")
			if strings.Contains(text, "kanarien") || strings.Contains(text, filepath.Dir(env.Dir)) || strings.Contains(text, "root:") {
				t.Errorf("%s %q: shows %q", name, p, got.Text)
			}
		}
	}
	secret, err := os.ReadFile(filepath.Join(filepath.Dir(env.Dir), "secret"))
	if err != nil || string(secret) != "kanarienvogel" {
		t.Errorf("the secret is %q, %v", secret, err)
	}
	if names, err := filepath.Glob(filepath.Dir(env.Dir) + "/*"); err != nil || len(names) != 2 {
		t.Errorf("beside the workspace are %v, %v", names, err)
	}
	got := use(t, ReadFile(), env, `{"path":"../secret"}`)
	if !strings.Contains(got.Text, "outside the workspace") {
		t.Errorf("the answer is %q", got.Text)
	}
}

// A62: nothing that could make a reader wait is opened.
func TestSpecialFilesAreRefused(t *testing.T) {
	env := workspace(t, map[string]string{"f": "x"})
	if err := syscall.Mkfifo(filepath.Join(env.Dir, "fifo"), 0o644); err != nil {
		t.Skip(err)
	}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := os.Chdir(env.Dir); err != nil { // a socket's path is short
		t.Fatal(err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: "sock"}); err != nil {
		t.Fatal(err)
	}
	names := []string{"fifo", "sock"}
	if err := syscall.Mknod(filepath.Join(env.Dir, "zero"), syscall.S_IFCHR|0o666, 1<<8|5); err == nil {
		names = append(names, "zero")
	}
	for _, name := range names {
		for _, got := range []Result{
			use(t, ReadFile(), env, asks("path", name)),
			use(t, Search(), env, asks("path", name, "pattern", "x")),
			use(t, WriteFile(), env, asks("path", name, "content", "x")),
			use(t, EditFile(), env, asks("path", name, "old", "x", "new", "y")),
		} {
			if !got.Failed || !strings.Contains(got.Text, ", not a file") {
				t.Errorf("%s: %v", name, got)
			}
		}
	}
	if got := use(t, Search(), env, `{"pattern":"x"}`); got.Text != "f:1:x" {
		t.Errorf("search beside them: %q", got.Text)
	}
}

func TestHardLinksAndLinksAreNotWritten(t *testing.T) {
	env := workspace(t, map[string]string{"f": "x", "target": "x"})
	if err := os.Link(filepath.Join(filepath.Dir(env.Dir), "secret"), filepath.Join(env.Dir, "hard")); err != nil {
		t.Skip(err)
	}
	if err := os.Symlink("target", filepath.Join(env.Dir, "soft")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"hard": "hard links", "soft": "symbolic link"} {
		for _, got := range []Result{
			use(t, WriteFile(), env, asks("path", name, "content", "x")),
			use(t, EditFile(), env, asks("path", name, "old", "x", "new", "y")),
		} {
			if !got.Failed || !strings.Contains(got.Text, want) {
				t.Errorf("%s: %v", name, got)
			}
		}
	}
}

// A60: while one side swaps a folder and a link out, no reader gets out.
func TestSwappingLinksWhileReading(t *testing.T) {
	env := workspace(t, map[string]string{"d/secret": "harmless", "e/secret": "harmless"})
	const swaps = 3000
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		defer close(stop)
		d, link, aside := filepath.Join(env.Dir, "d"), filepath.Join(env.Dir, "l"), filepath.Join(env.Dir, "aside")
		for range swaps {
			if os.Symlink("..", link) != nil || os.Rename(d, aside) != nil || os.Rename(link, d) != nil || os.Remove(d) != nil || os.Rename(aside, d) != nil {
				t.Error("swap went wrong")
				return
			}
		}
	})
	read := ReadFile()
	for n := 0; ; n++ {
		if got := use(t, read, env, `{"path":"d/secret"}`); strings.Contains(got.Text, "kanarien") {
			t.Fatal("the secret was read")
		}
		if dir, base, info, err := writable(env, "d/new"); err == nil { // write_file would also make the folder
			replace(dir, base, []byte("x"), info, []byte("x"))
			dir.Close()
		}
		select {
		case <-stop:
			wg.Wait()
			if _, err := os.Stat(filepath.Join(filepath.Dir(env.Dir), "new")); err == nil {
				t.Error("a file was written outside")
			}
			return
		default:
		}
	}
}

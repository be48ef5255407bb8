package tool

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"trill/engine/sandbox"
)

// shells are the ways a command can run here.
func shells(t *testing.T) map[string]Tool {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("needs /bin/sh")
	}
	out := map[string]Tool{"plain": Shell(ShellConfig{})}
	for _, mode := range []sandbox.Mode{sandbox.Auto, sandbox.Off} {
		s, err := sandbox.New(helper, sandbox.Config{Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		out[string(mode)] = Shell(ShellConfig{Sandbox: s})
	}
	return out
}

func TestShell(t *testing.T) {
	for name, shell := range shells(t) {
		t.Run(name, func(t *testing.T) {
			env := workspace(t, map[string]string{"f": "hello\n"})
			for _, tc := range []struct {
				command, want string
				failed        bool
			}{
				{"cat f", "hello", false},
				{"true", "(no output)", false},
				{"echo out; echo err >&2; exit 3", "out\nerr\n[exit code 3]", true},
				{"kill -9 $$", "(no output)\n[exit code 137: killed]", true},
				{"cat", "(no output)", false}, // standard input is empty
				{`printf '\033[31mred\033[0m \033]0;title\007x\r\n'`, "red x", false},
				{`printf ' 10%%\r 50%%\r100%%\n'`, "100%", false},
				{`printf 'a\342\200\256b\000c\377'`, "abc\uFFFD", false},
				{"nonsense-command 2>/dev/null", "(no output)\n[exit code 127]", true},
				{"printf $HOME", env.Dir, false},
				{"test -w $TMPDIR && printf yes", "yes", false},
				{" ", "The command is empty.", true},
			} {
				got := use(t, shell, env, asks("command", tc.command))
				if got.Text != tc.want || got.Failed != tc.failed {
					t.Errorf("%s: failed %v, %q; want %q", tc.command, got.Failed, got.Text, tc.want)
				}
			}
			for _, command := range []string{"env", "cat <<X\n$(env)\nX", "cat /proc/self/environ /proc/$PPID/environ 2>&1"} {
				got := use(t, shell, env, asks("command", command))
				// What is not confined finds the tests' own process above it.
				if strings.Contains(got.Text, "kanarien") && name != "plain" {
					t.Errorf("%s shows the canary", command)
				}
			}
		})
	}
}

func TestShellKeepsHeadAndTailOfLongOutput(t *testing.T) {
	env := workspace(t, nil)
	got := use(t, Shell(ShellConfig{}), env, `{"command":"echo first; seq 100000; echo last"}`).Text
	if len(got) > shellOutput+100 || !strings.HasPrefix(got, "first\n1\n") || !strings.HasSuffix(got, "100000\nlast") || !strings.Contains(got, "bytes left out ...]") {
		t.Errorf("%d bytes, %.50q ... %q", len(got), got, got[len(got)-50:])
	}
}

// A64: what never ends is ended, and nothing of it is left.
func TestShellStopsWhatTakesTooLong(t *testing.T) {
	for name, shell := range shells(t) {
		t.Run(name, func(t *testing.T) {
			env := workspace(t, nil)
			marker := fmt.Sprintf("%d%d", 2000+int(name[0]), os.Getpid()) // seconds that nobody else sleeps
			t.Parallel()
			for _, command := range []string{
				"echo begun; sleep " + marker,
				"echo begun; (sleep " + marker + "; true) & sleep " + marker + "; true",
				"echo begun; trap '' TERM; while :; do sleep " + marker + "; done",
				"echo begun; yes",
			} {
				got := use(t, shell, env, asks("command", command, "timeout_seconds", 2))
				if !got.Failed || !strings.HasPrefix(got.Text, "begun") || !strings.Contains(got.Text, "[stopped, as it took longer than 2s") {
					t.Errorf("%s: %.100q", command, got.Text)
				}
			}
			// The output stays open although the shell is gone.
			use(t, shell, env, asks("command", "echo begun; sleep "+marker+" &"))
			noneRuns(t, marker)
		})
	}
}

// A51: somebody stops the run.
func TestShellEndsWithItsContext(t *testing.T) {
	for name, shell := range shells(t) {
		t.Run(name, func(t *testing.T) {
			env := workspace(t, nil)
			marker := fmt.Sprintf("%d%d", 3000+int(name[0]), os.Getpid())
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan Result)
			go func() {
				res, err := shell.Run(ctx, env, []byte(asks("command", "sleep "+marker+" & touch begun; sleep "+marker)))
				if err != nil {
					t.Error(err)
				}
				done <- res
			}()
			for { // until the command is there
				if _, err := os.Stat(filepath.Join(env.Dir, "begun")); err == nil {
					break
				}
				runtime.Gosched()
			}
			cancel()
			if got := <-done; !got.Failed || got.Text != "(no output)\n[stopped]" {
				t.Errorf("stopped: %v", got)
			}
			noneRuns(t, marker)
		})
	}
}

// noneRuns fails when a process has the marker in its command line.
func noneRuns(t *testing.T, marker string) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if text, err := os.ReadFile(name); err == nil && strings.Contains(string(text), "sleep\x00"+marker) {
			t.Errorf("%s still runs: %q", name, text)
		}
	}
}

func TestShellSeesNoOtherSession(t *testing.T) {
	s, err := sandbox.New(helper, sandbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Status().Landlock == 0 {
		t.Skip("no Landlock here")
	}
	env := workspace(t, nil)
	for _, command := range []string{"cat ../secret", "ln -s .. l; cat l/secret", "cp ../secret .", "echo x > ../secret"} {
		if got := use(t, Shell(ShellConfig{Sandbox: s}), env, asks("command", command)); !got.Failed || strings.Contains(got.Text, "kanarien") {
			t.Errorf("%s: %v", command, got)
		}
	}
}

func TestShellTimeouts(t *testing.T) {
	if got := Shell(ShellConfig{}).Spec().Timeout; got != 10*time.Minute+10*time.Second {
		t.Errorf("the engine's limit is %v", got)
	}
	env := workspace(t, nil)
	got := use(t, Shell(ShellConfig{MaxTimeout: time.Second}), env, `{"command":"sleep 60","timeout_seconds":50}`)
	if !strings.Contains(got.Text, "longer than 1s") {
		t.Errorf("the most it can name: %q", got.Text)
	}
}

func TestHeadTail(t *testing.T) {
	for _, chunk := range []int{1, 3, 7, 100} {
		w := &headTail{head: 5, tail: 7}
		all := "abcdefghijklmnopqrstuvwxyz"
		for i := 0; i < len(all); i += chunk {
			w.Write([]byte(all[i:min(i+chunk, len(all))]))
		}
		if got, want := w.String(), "abcde\n[... 14 bytes left out ...]\ntuvwxyz"; got != want {
			t.Errorf("in chunks of %d: %q", chunk, got)
		}
	}
	w := &headTail{head: 5, tail: 7}
	w.Write([]byte("abcdefghijkl"))
	if got := w.String(); got != "abcdefghijkl" {
		t.Errorf("just full: %q", got)
	}
}

func FuzzPlain(f *testing.F) {
	f.Add("\x1b[31mred\x1b[0m\r\n")
	f.Add("\x1b]0;t\x07a\rb\u202ec")
	f.Fuzz(func(t *testing.T, s string) {
		got := plain(s)
		if strings.ContainsAny(got, "\x00\x07\x1b\r\u202e\u200b\u2066") {
			t.Errorf("%q became %q", s, got)
		}
	})
}

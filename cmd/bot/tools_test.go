package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"trill/engine/provider/openai/openaitest"
)

// allowAll lets every tool run without a question.
const allowAll = "[engine.permissions]\nmode = \"allow\"\n"

// once is a model that makes one call and then repeats what it was told.
func once(tool string, args any) func(*openaitest.Request) openaitest.Reply {
	raw, err := json.Marshal(args)
	if err != nil {
		panic(err)
	}
	return func(r *openaitest.Request) openaitest.Reply {
		if last := r.Messages[len(r.Messages)-1]; last.Role == "tool" {
			return openaitest.Text("told: "+last.Text(), 1)
		}
		return openaitest.Calls(openaitest.Call{ID: "call_1", Name: tool, Args: string(raw)})
	}
}

// alive reports whether a process whose command line holds the text runs.
func alive(t *testing.T, text string) bool {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("looks into /proc")
	}
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		line, err := os.ReadFile(f)
		if err == nil && strings.HasPrefix(string(line), "sleep") && strings.Contains(string(line), text) {
			return true
		}
	}
	return false
}

func awaitGone(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); alive(t, text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("sleep %s is still running", text)
		}
	}
}

func TestToolsStayInTheWorkspace(t *testing.T) {
	outside := t.TempDir()
	for name, tt := range map[string]struct {
		tool string
		args map[string]any
	}{
		"dots":              {"write_file", map[string]any{"path": "../../../escaped.txt", "content": "x"}},
		"absolute path":     {"write_file", map[string]any{"path": filepath.Join(outside, "escaped.txt"), "content": "x"}},
		"symlink":           {"write_file", map[string]any{"path": "link/escaped.txt", "content": "x"}},
		"command":           {"shell", map[string]any{"command": "echo x > " + filepath.Join(outside, "escaped.txt")}},
		"command with dots": {"shell", map[string]any{"command": "echo x > ../../../escaped.txt"}},
		"command by link":   {"shell", map[string]any{"command": "echo x > link/escaped.txt"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, allowAll)
			s.start()
			// The first message makes the workspace; then the link is put there.
			s.say("room1", "alice", "@trill hello")
			s.await("hello")
			dirs, err := filepath.Glob(filepath.Join(s.dir, "data", "workspaces", "*"))
			if err != nil || len(dirs) != 1 {
				t.Fatalf("workspaces %v, %v", dirs, err)
			}
			if err := os.Symlink(outside, filepath.Join(dirs[0], "link")); err != nil {
				t.Fatal(err)
			}
			s.model.Handle(once(tt.tool, tt.args))
			s.say("room1", "alice", "@trill go")
			told := s.await("told: ")
			for _, dir := range []string{outside, s.dir, filepath.Join(s.dir, "data"), filepath.Join(s.dir, "data", "workspaces")} {
				if _, err := os.Lstat(filepath.Join(dir, "escaped.txt")); err == nil {
					t.Errorf("a file was written to %s; the model was %s", dir, told.Text)
				}
			}
			if strings.Contains(told.Text, s.dir) {
				t.Errorf("the model was told where the workspace is: %s", told.Text)
			}
			s.settled()
		})
	}
}

func TestCommandIsStoppedAtItsTimeoutWithItsChildren(t *testing.T) {
	mark := fmt.Sprintf("30%d", os.Getpid())
	s := newService(t, allowAll)
	s.model.Handle(once("shell", map[string]any{"command": fmt.Sprintf("sleep %s.1 & (setsid sleep %s.2 &) ; sleep %s.3", mark, mark, mark), "timeout_seconds": 1}))
	s.start()
	s.say("room1", "alice", "@trill go")
	s.await("told: ")
	awaitGone(t, mark)
	s.settled()
}

// TestStopEndsACommandAtOnce is A51.
func TestStopEndsACommandAtOnce(t *testing.T) {
	mark := fmt.Sprintf("40%d", os.Getpid())
	s := newService(t, allowAll)
	s.model.Handle(once("shell", map[string]any{"command": fmt.Sprintf("while true; do sleep %s; done", mark)}))
	s.start()
	s.say("room1", "alice", "@trill go")
	for !alive(t, mark) {
		runtime.Gosched()
	}
	s.say("room1", "bob", "/stop")
	s.await("Stopped.")
	awaitGone(t, mark)
	s.settled()
	if got := s.posted("room1"); len(got) != 1 {
		t.Errorf("posted %q", got)
	}
}

// TestCommandsDoNotSeeTheService is A63.
func TestCommandsDoNotSeeTheService(t *testing.T) {
	s := newService(t, allowAll)
	s.model.Handle(once("shell", map[string]any{"command": "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; cat ../../trill.db ../../token ../../../trill.toml 2>&1; echo end"}))
	s.start()
	s.say("room1", "alice", "@trill go")
	got := s.await("end").Text
	for _, secret := range []string{"sk-test-key", testSecret, "TEST_MODEL_KEY"} {
		if strings.Contains(got, secret) {
			t.Errorf("a command sees %q:\n%s", secret, got)
		}
	}
	s.settled()
}

// TestGuestsOnlyRead gives a guest the most permissive rules there are.
func TestGuestsOnlyRead(t *testing.T) {
	s := newService(t, allowAll+"[[access.grant]]\nwho = \"cloud:users/gast\"\nrole = \"guest\"\n")
	s.model.Handle(once("write_file", map[string]any{"path": "a.txt", "content": "x"}))
	s.start()
	s.say("room1", "gast", "@trill go")
	if got := s.await("told: ").Text; !strings.Contains(got, "Not allowed") {
		t.Errorf("the model was %s", got)
	}
	s.settled()
}

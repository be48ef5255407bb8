package tool

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"
	"unicode"

	"trill/engine/sandbox"
)

//go:embed shell.md
var shellText string

const (
	shellCommand = 100_000 // bytes of a command; the kernel takes 128 KiB
	shellOutput  = 30_000  // bytes that are kept
)

// ShellConfig is how commands run.
type ShellConfig struct {
	// Sandbox confines them; nil runs them as they are, for tests and systems
	// without one.
	Sandbox *sandbox.Sandbox
	// Network lets them use the machine's network.
	Network bool
	// Write lists absolute folders they may write to besides the workspace.
	Write []string
	// Env are variables they have besides PATH, HOME, LANG, TERM and TMPDIR.
	Env []string
	// Timeout is for a command that names none, MaxTimeout the most it can
	// name; 0: two and ten minutes.
	Timeout, MaxTimeout time.Duration
}

type shellArgs struct {
	Command string `json:"command" jsonschema:"the command line, for /bin/sh"`
	Timeout int    `json:"timeout_seconds,omitempty" jsonschema:"after how many seconds it is stopped; default 120, most 600"`
}

// Shell returns the tool that runs a command line.
func Shell(conf ShellConfig) Tool {
	if conf.Timeout == 0 {
		conf.Timeout = 2 * time.Minute
	}
	if conf.MaxTimeout == 0 {
		conf.MaxTimeout = max(10*time.Minute, conf.Timeout)
	}
	conf.Timeout = min(conf.Timeout, conf.MaxTimeout)
	s := &shell{conf}
	// The engine's own limit comes a little later, so that ours can say what
	// there was until then.
	return New(Spec{Name: "shell", Description: shellText, Timeout: conf.MaxTimeout + 10*time.Second}, s.run)
}

type shell struct{ conf ShellConfig }

func (s *shell) run(ctx context.Context, env Env, a shellArgs) (Result, error) {
	switch {
	case strings.TrimSpace(a.Command) == "":
		return Failure("The command is empty."), nil
	case len(a.Command) > shellCommand:
		return Failure(fmt.Sprintf("The command has %d bytes, more than %d: write a script with write_file and run that.", len(a.Command), shellCommand)), nil
	case strings.ContainsRune(a.Command, 0):
		return Failure("The command holds a zero byte, which no command can."), nil
	}
	timeout := s.conf.Timeout
	if a.Timeout > 0 {
		timeout = min(time.Duration(min(a.Timeout, 1<<20))*time.Second, s.conf.MaxTimeout)
	}
	temp, err := os.MkdirTemp("", "trill-")
	if err != nil {
		return Result{}, fmt.Errorf("make a temporary folder: %w", err)
	}
	defer os.RemoveAll(temp)
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd, err := s.conf.Sandbox.Command(limited, sandbox.Job{
		Dir: env.Dir, Temp: temp, Write: s.conf.Write, Network: s.conf.Network, Env: s.conf.Env,
	}, "/bin/sh", "-c", a.Command)
	if err != nil {
		return Result{}, fmt.Errorf("prepare a command: %w", err)
	}
	out := &headTail{head: shellOutput / 2, tail: shellOutput / 2}
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	sandbox.KillGroup(cmd)
	exit, exited := errors.AsType[*exec.ExitError](err)
	if err != nil && !exited && limited.Err() == nil && !errors.Is(err, exec.ErrWaitDelay) {
		return Result{}, fmt.Errorf("run a command: %w", err)
	}
	text := plain(out.String())
	if text == "" {
		text = "(no output)"
	}
	switch {
	case ctx.Err() != nil:
		return Failure(text + "\n[stopped]"), nil
	case limited.Err() != nil:
		return Failure(fmt.Sprintf("%s\n[stopped, as it took longer than %v; give timeout_seconds for more, or do less at once]", text, timeout)), nil
	case exited:
		return Failure(fmt.Sprintf("%s\n[%s]", text, exitText(exit))), nil
	}
	return Result{Text: text}, nil
}

// exitText says how a command ended that did not end well.
func exitText(e *exec.ExitError) string {
	code := e.ExitCode()
	if ws, ok := e.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		code = 128 + int(ws.Signal())
	}
	if sig := syscall.Signal(code - 128); code > 128 && code < 128+32 {
		return fmt.Sprintf("exit code %d: %v", code, sig)
	}
	return fmt.Sprintf("exit code %d", code)
}

// headTail keeps the beginning and the end of what is written to it.
type headTail struct {
	head, tail int // bytes to keep of each
	first      []byte
	last       []byte // a ring
	next       int    // where the ring goes on
	total      int64
}

func (w *headTail) Write(p []byte) (int, error) {
	n := len(p)
	w.total += int64(n)
	if room := w.head - len(w.first); room > 0 {
		k := min(room, len(p))
		w.first = append(w.first, p[:k]...)
		p = p[k:]
	}
	if len(p) > w.tail {
		p = p[len(p)-w.tail:]
	}
	for len(p) > 0 {
		if len(w.last) < w.tail {
			k := min(w.tail-len(w.last), len(p))
			w.last = append(w.last, p[:k]...)
			p = p[k:]
			continue
		}
		k := copy(w.last[w.next:], p)
		w.next = (w.next + k) % w.tail
		p = p[k:]
	}
	return n, nil
}

func (w *headTail) String() string {
	last := string(w.last[w.next:]) + string(w.last[:w.next])
	left := w.total - int64(len(w.first)+len(last))
	if left == 0 {
		return string(w.first) + last
	}
	return fmt.Sprintf("%s\n[... %d bytes left out ...]\n%s", w.first, left, last)
}

// escapes are what terminals act on: colours, titles, cursor moves.
var escapes = regexp.MustCompile(`(?s)\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]`)

// plain makes output readable text: no escapes, of a line that was overwritten
// its last state, and no characters that hide or reorder others.
func plain(s string) string {
	s = escapes.ReplaceAllString(strings.ToValidUTF8(s, "\uFFFD"), "")
	s = strings.ReplaceAll(s, "\r\n", "\n")
	if strings.Contains(s, "\r") {
		lines := strings.Split(s, "\n")
		for i, l := range lines {
			l = strings.TrimRight(l, "\r")
			lines[i] = l[strings.LastIndexByte(l, '\r')+1:]
		}
		s = strings.Join(lines, "\n")
	}
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case unicode.Is(unicode.Cc, r),
			r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, // direction
			r >= 0x200b && r <= 0x200f && r != 0x200d, r == 0x2060, r == 0xfeff, // width zero; 200d joins emoji
			r >= 0xe0000 && r <= 0xe007f: // tags
			return -1
		}
		return r
	}, s)
	return strings.Trim(s, "\n")
}

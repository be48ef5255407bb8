// Package sandbox runs commands that nobody has read: what a model wrote for a
// shell, or a server that came with a plugin.
//
// A command sees the system's programs, its own folder and a private temporary
// one, and nothing else of the disk; it has no network, no capabilities, no
// variables of ours, limits on what it may use up, and it leaves no process
// behind. Each layer does one thing: files by Landlock, network and processes
// by namespaces, dangerous system calls by seccomp, the rest by rlimits.
//
// These restrictions cannot be taken back, so they are never put on our own
// process: it starts itself again as a helper, which confines a command and
// stays as its supervisor. That is what [Main] is for. On systems other than
// Linux commands run as they are.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Mode says how much confinement is asked for.
type Mode string

// The modes.
const (
	Auto     Mode = "auto"     // whatever this machine offers
	Required Mode = "required" // all of it, or nothing runs
	Off      Mode = "off"      // none; commands still have limits and an end
)

// Config is what all commands of a process have in common.
type Config struct {
	Mode Mode // empty: Auto
	// Read lists files and folders that commands may read and run besides the
	// system's own.
	Read []string
	// Hidden lists files and folders that commands never see, also when they
	// are below something readable: our data and configuration.
	Hidden []string
	Limits Limits
}

// Limits is what one command may use up. A zero stands for its default.
type Limits struct {
	CPU       time.Duration // of each process; 10 minutes
	FileSize  int64         // bytes of each file it writes; 1 GiB
	OpenFiles int           // of each process; 1024
	// Processes is how many a command may have at once; 512. It holds where the
	// command has its own process ids (Linux 6.14), or does not run as root.
	Processes int
	Memory    int64 // bytes of data of each process; 4 GiB
}

func (l Limits) withDefaults() Limits {
	if l.CPU == 0 {
		l.CPU = 10 * time.Minute
	}
	if l.FileSize == 0 {
		l.FileSize = 1 << 30
	}
	if l.OpenFiles == 0 {
		l.OpenFiles = 1024
	}
	if l.Processes == 0 {
		l.Processes = 512
	}
	if l.Memory == 0 {
		l.Memory = 4 << 30
	}
	return l
}

// Validate reports every fault, each starting with its key.
func (c Config) Validate() error {
	var errs []error
	switch c.Mode {
	case "", Auto, Required, Off:
	default:
		errs = append(errs, fmt.Errorf("mode: %q is none of auto, required, off", c.Mode))
	}
	for key, paths := range map[string][]string{"read": c.Read, "hidden": c.Hidden} {
		for _, p := range paths {
			if !filepath.IsAbs(p) {
				errs = append(errs, fmt.Errorf("%s: %q is not an absolute path", key, p))
			}
		}
	}
	l := c.Limits
	if l.CPU < 0 || l.FileSize < 0 || l.OpenFiles < 0 || l.Processes < 0 || l.Memory < 0 {
		errs = append(errs, errors.New("limits: a limit is below zero"))
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// Helper is the proof that [Main] was called: starting ourselves again is only
// safe when Main is there to catch it.
type Helper struct{ ready bool }

// helperName is the first argument that makes a process the helper.
const helperName = "trill-sandbox"

// exitHelper is the exit code of a helper that could not do its work.
const exitHelper = 125

// Main must be the first thing that main does, and TestMain in tests that run
// commands. In a process that was started as the helper it does the helper's
// work and does not return.
func Main() Helper {
	if len(os.Args) >= 2 && os.Args[0] == helperName {
		os.Exit(serve(os.Args[1], os.Args[2:]))
	}
	return Helper{ready: true}
}

// Status is what a machine offers.
type Status struct {
	Landlock  int  // version of its interface; 0: not there
	Seccomp   bool // filtering system calls
	Network   bool // a network of its own for each command
	Processes bool // process ids, mounts and IPC of its own for each command

	flags uintptr // of clone, as they work here
}

// Lack is a layer that is not there, and what can be done about it.
type Lack struct{ What, Advice string }

// Lacks lists what is missing for mode required.
func (s Status) Lacks() []Lack {
	var out []Lack
	if s.Landlock == 0 {
		out = append(out, Lack{"files: no Landlock",
			"use Linux 5.13 or newer with \"landlock\" among the kernel's lsm= modules"})
	}
	if !s.Seccomp {
		out = append(out, Lack{"system calls: no seccomp", "use a kernel with CONFIG_SECCOMP_FILTER on amd64 or arm64"})
	}
	const userns = "allow user namespaces: sysctl user.max_user_namespaces above 0, kernel.apparmor_restrict_unprivileged_userns=0, " +
		"and in a container a seccomp profile that allows clone and unshare"
	if !s.Network {
		out = append(out, Lack{"network: no namespace of its own", userns})
	}
	if !s.Processes {
		out = append(out, Lack{"processes: no namespace of its own", userns + "; in a container also an unmasked /proc"})
	}
	return out
}

// String describes the layers in one line.
func (s Status) String() string {
	word := func(ok bool) string {
		if ok {
			return "yes"
		}
		return "no"
	}
	return fmt.Sprintf("landlock %d, seccomp %s, network namespace %s, process namespace %s",
		s.Landlock, word(s.Seccomp), word(s.Network), word(s.Processes))
}

// Sandbox makes confined commands. It may be used from several goroutines.
type Sandbox struct {
	conf   Config
	status func() Status // finds out once
}

// New returns a sandbox. What the machine offers is found out by starting the
// helper a few times: in mode required at once, to fail when a layer is missing,
// else before the first command.
func New(h Helper, conf Config) (*Sandbox, error) {
	if err := conf.Validate(); err != nil {
		return nil, err
	}
	if !h.ready {
		return nil, errors.New("call sandbox.Main first in main")
	}
	conf.Limits = conf.Limits.withDefaults()
	if conf.Mode == "" {
		conf.Mode = Auto
	}
	s := &Sandbox{conf: conf, status: sync.OnceValue(func() Status {
		if conf.Mode == Off {
			return Status{}
		}
		return Probe(h)
	})}
	if conf.Mode != Required {
		return s, nil
	}
	if lacks := s.status().Lacks(); len(lacks) > 0 {
		errs := make([]error, len(lacks))
		for i, l := range lacks {
			errs[i] = fmt.Errorf("mode: required, but %s: %s", l.What, l.Advice)
		}
		return nil, errors.Join(errs...)
	}
	return s, nil
}

// Status returns what commands are confined with; nothing in mode off.
func (s *Sandbox) Status() Status { return s.status() }

// Job is what one command needs.
type Job struct {
	Dir     string   // absolute; the command starts here and may write here
	Temp    string   // absolute; a private folder for temporary files, or empty
	Write   []string // more folders it may write to
	Network bool     // lets it use the machine's network
	Env     []string // added to the few variables every command has
}

// Command returns the command, not started, with a Cancel and a WaitDelay that
// end it and everything it started within a second of ctx's end. Its exit code is
// the command's own, 128 and the signal's number, or 125 with a line on standard
// error when it could not be confined. ExtraFiles are not passed on. A nil Sandbox
// runs commands as they are, in a process group of their own.
func (s *Sandbox) Command(ctx context.Context, job Job, argv ...string) (*exec.Cmd, error) {
	if len(argv) == 0 {
		return nil, errors.New("no command")
	}
	if s == nil {
		return unconfined(ctx, job, argv), nil
	}
	job.Dir = filepath.Clean(job.Dir)
	for _, p := range append([]string{job.Dir}, job.Write...) {
		if !filepath.IsAbs(p) {
			return nil, fmt.Errorf("folder of a command: %q is not an absolute path", p)
		}
		for _, h := range s.conf.Hidden {
			if inside(real(h), real(p)) {
				return nil, errors.New("folder of a command: it holds the data or configuration of the service; choose another")
			}
		}
	}
	return s.command(ctx, job, argv)
}

// unconfined returns a plain command.
func unconfined(ctx context.Context, job Job, argv []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = job.Dir
	cmd.Env = environ(job.Dir, job.Temp, job.Env)
	cmd.WaitDelay = waitDelay
	ownGroup(cmd)
	return cmd
}

// waitDelay is when a command that was told to end and hangs is killed, and when
// nobody waits any longer for those who still hold its output open.
const waitDelay = 800 * time.Millisecond

// path is where commands find programs.
const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environ returns the variables of a command: none of ours.
func environ(dir, temp string, more []string) []string {
	env := []string{"PATH=" + path, "HOME=" + dir, "PWD=" + dir, "LANG=C.UTF-8", "TERM=dumb"}
	if temp != "" {
		env = append(env, "TMPDIR="+temp)
	}
	return append(env, more...)
}

// inside reports whether p is dir or below it; both are clean and absolute.
func inside(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

// real resolves the symbolic links of a path, as far as it exists.
func real(p string) string {
	p = filepath.Clean(p)
	if r, err := filepath.EvalSymlinks(p); err == nil {
		return r
	}
	return p
}

// carve returns what of the readable paths can be granted so that nothing hidden
// is: a folder with something hidden in it is replaced by its other entries.
func carve(read, hidden []string) []string {
	var out []string
	for _, p := range read {
		out = carveOne(out, real(p), hidden)
	}
	return out
}

func carveOne(out []string, p string, hidden []string) []string {
	within := false
	for _, h := range hidden {
		if inside(p, h) {
			return out
		}
		within = within || inside(h, p)
	}
	if !within {
		return append(out, p)
	}
	entries, err := os.ReadDir(p)
	if err != nil {
		return out
	}
	for _, e := range entries {
		if e.Type()&os.ModeSymlink == 0 { // its target has its own place
			out = carveOne(out, filepath.Join(p, e.Name()), hidden)
		}
	}
	return out
}

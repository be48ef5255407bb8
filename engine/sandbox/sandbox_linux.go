package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// plan is what the helper is told. It is not secret: a command can read it in
// its parent's command line.
type plan struct {
	Read      []string `json:"read,omitempty"`
	Write     []string `json:"write,omitempty"`
	Temp      string   `json:"temp,omitempty"` // becomes /tmp
	Limits    Limits   `json:"limits"`
	Confine   bool     `json:"confine,omitempty"`
	Landlock  int      `json:"landlock,omitempty"`
	Seccomp   bool     `json:"seccomp,omitempty"`
	Processes bool     `json:"processes,omitempty"`  // is process 1 of its namespace
	Loopback  bool     `json:"loopback,omitempty"`   // has a network of its own
	NoSockets bool     `json:"no_sockets,omitempty"` // no network by seccomp
	Probe     bool     `json:"probe,omitempty"`
}

const (
	// grace is what a command has between SIGTERM and SIGKILL.
	grace = 300 * time.Millisecond
	// probeTime is more than a helper needs on a machine that is very busy.
	probeTime = 10 * time.Second

	cloneAll = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWNET
)

// systemRead is what every command may read and run. Of /etc it is what programs
// need, by name: a configuration of ours or of others may lie beside it.
var systemRead = []string{
	"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/proc",
	"/sys/devices/system/cpu", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage",
	"/etc/alternatives", "/etc/bash.bashrc", "/etc/ca-certificates", "/etc/crypto-policies", "/etc/debian_version",
	"/etc/default/locale", "/etc/environment", "/etc/fonts", "/etc/gitconfig", "/etc/group", "/etc/host.conf",
	"/etc/hostname", "/etc/hosts", "/etc/inputrc", "/etc/java", "/etc/ld.so.cache", "/etc/ld.so.conf",
	"/etc/ld.so.conf.d", "/etc/locale.alias", "/etc/locale.conf", "/etc/localtime", "/etc/magic", "/etc/mime.types",
	"/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd", "/etc/perl", "/etc/pki/tls", "/etc/pki/ca-trust",
	"/etc/profile", "/etc/protocols", "/etc/python3", "/etc/resolv.conf", "/etc/services", "/etc/shells",
	"/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf", "/etc/terminfo", "/etc/timezone",
}

// systemWrite is what of /dev every command may use.
var systemWrite = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"}

// Probe reports what this machine offers. It starts the helper a few times.
func Probe(h Helper) Status {
	s := Status{Landlock: landlockABI(), Seccomp: haveSeccomp()}
	if !h.ready {
		return s
	}
	tries := []uintptr{unix.CLONE_NEWUSER | cloneAll, cloneAll, unix.CLONE_NEWUSER | unix.CLONE_NEWNET, unix.CLONE_NEWNET}
	for _, flags := range tries {
		if flags&unix.CLONE_NEWUSER == 0 && os.Geteuid() != 0 || !works(flags) {
			continue
		}
		s.flags = flags
		s.Network = flags&unix.CLONE_NEWNET != 0
		s.Processes = flags&unix.CLONE_NEWPID != 0
		break
	}
	return s
}

// works reports whether a helper can be started and set up with these flags.
func works(flags uintptr) bool {
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	p := plan{
		Limits: Limits{}.withDefaults(), Probe: true,
		Processes: flags&unix.CLONE_NEWPID != 0, Loopback: flags&unix.CLONE_NEWNET != 0,
	}
	cmd, err := p.command(ctx, flags, nil)
	if err != nil {
		return false
	}
	cmd.Dir, cmd.Env = "/", environ("/", "", nil)
	return cmd.Run() == nil
}

func (s *Sandbox) command(ctx context.Context, job Job, argv []string) (*exec.Cmd, error) {
	p := plan{Limits: s.conf.Limits}
	flags, temp := uintptr(0), job.Temp
	if s.conf.Mode != Off {
		flags = s.status().flags
		if job.Network {
			flags &^= unix.CLONE_NEWNET
		}
		if flags == unix.CLONE_NEWUSER {
			flags = 0 // was only there for the network
		}
		p.Confine = true
		p.Landlock, p.Seccomp = s.status().Landlock, s.status().Seccomp
		p.Processes = flags&unix.CLONE_NEWPID != 0
		p.Loopback = flags&unix.CLONE_NEWNET != 0
		p.NoSockets = !job.Network && !p.Loopback
		hidden := make([]string, len(s.conf.Hidden))
		for i, h := range s.conf.Hidden {
			hidden[i] = real(h)
		}
		p.Read = carve(append(append([]string(nil), systemRead...), s.conf.Read...), hidden)
		p.Write = append(append([]string{job.Dir}, job.Write...), systemWrite...)
		if p.Processes && temp != "" && !anyInside("/tmp", p.Read, p.Write) {
			p.Temp, temp = temp, "/tmp"
		}
		if temp != "" {
			p.Write = append(p.Write, temp)
		}
		if p.Processes {
			p.Write = append(p.Write, "/dev/shm")
		}
	}
	cmd, err := p.command(ctx, flags, argv)
	if err != nil {
		return nil, err
	}
	cmd.Dir = job.Dir
	cmd.Env = environ(job.Dir, temp, job.Env)
	return cmd, nil
}

func anyInside(dir string, lists ...[]string) bool {
	for _, l := range lists {
		for _, p := range l {
			if inside(p, dir) || inside(real(p), dir) {
				return true
			}
		}
	}
	return false
}

// command returns the helper that carries the plan out.
func (p plan) command(ctx context.Context, flags uintptr, argv []string) (*exec.Cmd, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("plan of a command: %w", err)
	}
	// This file, even when a newer one was put in its place since we started.
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = append([]string{helperName, string(text)}, argv...)
	attr := &syscall.SysProcAttr{
		Setsid:     true, // also keeps it from typing into our terminal
		Cloneflags: flags,
		Pdeathsig:  syscall.SIGTERM,
	}
	if p.Processes {
		attr.Pdeathsig = syscall.SIGKILL // the kernel takes the others along
	}
	if flags&unix.CLONE_NEWUSER != 0 {
		if err := mapIDs(attr); err != nil {
			return nil, err
		}
	}
	cmd.SysProcAttr = attr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = waitDelay
	return cmd, nil
}

// mapIDs keeps every id what it is. Root keeps all that it has itself, so that
// files of others still are theirs; everybody else has one.
func mapIDs(attr *syscall.SysProcAttr) error {
	uid, gid := os.Geteuid(), os.Getegid()
	if uid != 0 {
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		// What the helper needs to set its namespaces up. Root has it anyway.
		attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SETPCAP}
		return nil
	}
	var err error
	if attr.UidMappings, err = readMap("/proc/self/uid_map"); err != nil {
		return err
	}
	if attr.GidMappings, err = readMap("/proc/self/gid_map"); err != nil {
		return err
	}
	attr.GidMappingsEnableSetgroups = true
	return nil
}

func readMap(name string) ([]syscall.SysProcIDMap, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var out []syscall.SysProcIDMap
	for line := range bytes.Lines(text) {
		var here, there, size int
		if _, err := fmt.Sscan(string(line), &here, &there, &size); err != nil {
			return nil, fmt.Errorf("read %s: %w", filepath.Base(name), err)
		}
		out = append(out, syscall.SysProcIDMap{ContainerID: here, HostID: here, Size: size})
	}
	return out, nil
}

// lookPath finds a program as the command's own shell would.
func lookPath(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	p, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s: no such program", name)
	}
	return p, nil
}

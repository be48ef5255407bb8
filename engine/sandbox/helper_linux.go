package sandbox

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// serve is the helper: it sets up what is the whole process's, starts the command
// from a thread that is confined, and waits for its end. It returns the exit code.
func serve(text string, argv []string) int {
	// Before anything else: as process 1 only signals with a handler arrive.
	sigs := make(chan os.Signal, 1)
	signal.Notify(sigs, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	fail := func(err error) int {
		fmt.Fprintf(os.Stderr, "sandbox: %v\n", err)
		return exitHelper
	}
	var p plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return fail(fmt.Errorf("read the plan: %w", err))
	}
	if err := p.prepare(); err != nil {
		return fail(err)
	}
	if p.Probe {
		return 0
	}
	if len(argv) == 0 {
		return fail(fmt.Errorf("no command"))
	}
	program, err := lookPath(argv[0])
	if err != nil {
		fmt.Fprintf(os.Stderr, "%v\n", err)
		return 127
	}
	pid, err := p.start(program, argv)
	if err != nil {
		return fail(err)
	}
	return p.supervise(pid, sigs)
}

// prepare sets up namespaces and limits.
func (p plan) prepare() error {
	// When memory runs out, this and not the service. It may not be allowed.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("500"), 0)
	if p.Processes {
		if err := p.mounts(); err != nil {
			return err
		}
		// Root has no RLIMIT_NPROC. Ids wrap to 300, where those of a system's
		// first processes end; older kernels have one maximum for all.
		_ = os.WriteFile("/proc/sys/kernel/pid_max", []byte(strconv.Itoa(300+p.Limits.Processes)), 0)
	} else if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("adopt orphans: %w", err)
	}
	if p.Loopback {
		if err := loopbackUp(); err != nil {
			return fmt.Errorf("start the loopback interface: %w", err)
		}
	}
	for _, l := range []struct {
		what  int
		value uint64
	}{
		{unix.RLIMIT_CPU, uint64((p.Limits.CPU + time.Second - 1) / time.Second)},
		{unix.RLIMIT_FSIZE, uint64(p.Limits.FileSize)},
		{unix.RLIMIT_NOFILE, uint64(p.Limits.OpenFiles)},
		{unix.RLIMIT_NPROC, uint64(p.Limits.Processes)},
		{unix.RLIMIT_DATA, uint64(p.Limits.Memory)},
		{unix.RLIMIT_CORE, 0},
	} {
		if err := limit(l.what, l.value); err != nil {
			return fmt.Errorf("set a limit: %w", err)
		}
	}
	return nil
}

// limit lowers a limit; one that is lower already stays.
func limit(what int, value uint64) error {
	var old syscall.Rlimit
	if err := syscall.Getrlimit(what, &old); err != nil {
		return err
	}
	value = min(value, old.Max)
	// The one of package syscall, or NOFILE would be put back for the child.
	return syscall.Setrlimit(what, &syscall.Rlimit{Cur: value, Max: value})
}

// mounts gives the command its own /proc, /dev/shm and, if planned, /tmp.
func (p plan) mounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	const safe = unix.MS_NOSUID | unix.MS_NODEV
	if err := unix.Mount("proc", "/proc", "proc", safe|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if _, err := os.Stat("/dev/shm"); err == nil {
		if err := unix.Mount("tmpfs", "/dev/shm", "tmpfs", safe, "size=256m,mode=1777"); err != nil {
			return fmt.Errorf("mount /dev/shm: %w", err)
		}
	}
	if p.Temp != "" {
		if err := unix.Mount(p.Temp, "/tmp", "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount /tmp: %w", err)
		}
	}
	return nil
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

// start starts the command from a thread that has given up everything the
// command must not have. The helper's other threads keep theirs, its first one
// above all: by that one a command would find and stop its supervisor.
func (p plan) start(program string, argv []string) (int, error) {
	type result struct {
		pid int
		err error
	}
	started := make(chan result)
	var launch func()
	launch = func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			go launch() // on another thread, as this one stays locked
		} else {
			var r result
			if r.err = p.confine(); r.err == nil {
				r.pid, r.err = syscall.ForkExec(program, argv, &syscall.ProcAttr{
					Env:   os.Environ(),
					Files: []uintptr{0, 1, 2},
					Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
				})
				if r.err != nil {
					r.err = fmt.Errorf("%s: %w", argv[0], r.err)
				}
			}
			started <- r
		}
		select {} // the end of the thread would be a death of the parent
	}
	go launch()
	r := <-started
	return r.pid, r.err
}

// confine gives up rights of the calling thread, for good.
func (p plan) confine() error {
	if !p.Confine {
		return nil
	}
	if err := dropCapabilities(); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	if p.Landlock > 0 {
		if err := restrictFiles(p.Landlock, p.Read, p.Write); err != nil {
			return fmt.Errorf("restrict files: %w", err)
		}
	}
	if p.Seccomp {
		if err := restrictCalls(p.NoSockets); err != nil {
			return fmt.Errorf("restrict system calls: %w", err)
		}
	}
	return nil
}

// keptCapabilities is what root keeps: being owner of files that are others'.
const keptCapabilities = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID

func dropCapabilities() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&head, &have[0]); err != nil {
		return err
	}
	var keep uint32
	if os.Geteuid() == 0 {
		keep = keptCapabilities & have[0].Permitted
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	if have[0].Effective&(1<<unix.CAP_SETPCAP) != 0 {
		for c := uintptr(0); c < 64; c++ {
			if keep&(1<<c) != 0 {
				continue
			}
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EINVAL { // EINVAL: the kernel has fewer
				return err
			}
		}
	}
	left := [2]unix.CapUserData{{Effective: keep, Permitted: keep}}
	return unix.Capset(&head, &left[0])
}

// supervise waits until the command ends or we are told to end it, and leaves
// nothing of it running.
func (p plan) supervise(pid int, sigs <-chan os.Signal) int {
	exited := make(chan int, 1)
	gone := make(chan struct{}) // closed when there is no child left
	go func() {
		defer close(gone)
		for {
			var ws syscall.WaitStatus
			switch child, err := syscall.Wait4(-1, &ws, 0, nil); {
			case err == syscall.EINTR:
			case err != nil:
				return
			case child == pid && ws.Signaled():
				exited <- 128 + int(ws.Signal())
			case child == pid:
				exited <- ws.ExitStatus()
			}
		}
	}()
	code := 128 + int(syscall.SIGTERM)
	select {
	case code = <-exited:
	case <-sigs:
		p.signal(syscall.SIGTERM)
		select {
		case <-gone:
		case <-time.After(grace):
		}
	}
	// What a process starts while it is being killed is ours to find next time.
	for range 50 {
		p.signal(syscall.SIGKILL)
		select {
		case <-gone:
			return code
		case <-time.After(10 * time.Millisecond):
		}
	}
	return code
}

// signal reaches everything that came from the command.
func (p plan) signal(sig syscall.Signal) {
	if p.Processes {
		_ = syscall.Kill(-1, sig) // all of the namespace but us
		return
	}
	for _, pid := range descendants(os.Getpid()) {
		_ = syscall.Kill(pid, sig)
	}
}

// descendants returns the processes below pid. As orphans are adopted by the
// helper, none escapes by leaving its group or its session.
func descendants(pid int) []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for _, n := range names {
		child, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + n + "/stat")
		if err != nil {
			continue
		}
		// pid (name) state parent ...; the name may hold anything
		text := string(stat)
		fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		if len(fields) < 2 {
			continue
		}
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			children[parent] = append(children[parent], child)
		}
	}
	var out []int
	for next := children[pid]; len(next) > 0; {
		child := next[0]
		next = append(next[1:], children[child]...)
		out = append(out, child)
	}
	return out
}

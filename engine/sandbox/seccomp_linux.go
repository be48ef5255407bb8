package sandbox

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// deniedCalls are system calls that no command needs and that have been, or may
// become, a way out: other processes' memory, mounts, namespaces, kernel keys,
// programs in the kernel, asynchronous calls that no filter sees.
var deniedCalls = append([]uint32{
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE,
	unix.SYS_KCMP, unix.SYS_PIDFD_GETFD,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT,
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR,
	unix.SYS_UNSHARE, unix.SYS_SETNS,
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD,
	unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_SYSLOG,
	unix.SYS_VHANGUP, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX,
	unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_LOOKUP_DCOOKIE,
}, archCalls...)

// newNamespaces are the flags of clone that make one.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWTIME

// Where the parts of a call are in what a filter sees; arguments by their lower
// half, which both of our architectures have first.
const (
	offCall = 0
	offArch = 4
	offArg0 = 16
	offArg1 = 24
)

// x32Calls is where the numbers of amd64's second set of calls start.
const x32Calls = 0x40000000

// haveSeccomp reports whether the kernel filters calls, and we know the numbers.
func haveSeccomp() bool {
	if auditArch == 0 {
		return false
	}
	action := uint32(unix.SECCOMP_RET_ERRNO)
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	return errno == 0
}

// restrictCalls filters the system calls of the calling thread. With noSockets it
// has no network either. Unix sockets with a name are never there: Landlock
// would let a command connect to those of the machine's services.
func restrictCalls(noSockets bool) error {
	prog := filter(noSockets)
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&fprog))); errno != 0 {
		return errno
	}
	return nil
}

func filter(noSockets bool) []unix.SockFilter {
	load := func(off uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
	}
	// when runs the next steps if the test holds, and else leaves them out.
	when := func(test uint16, k uint32, steps ...unix.SockFilter) []unix.SockFilter {
		return append([]unix.SockFilter{{Code: unix.BPF_JMP | test | unix.BPF_K, Jf: uint8(len(steps)), K: k}}, steps...)
	}
	ret := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	refuse := func(e unix.Errno) unix.SockFilter { return ret(unix.SECCOMP_RET_ERRNO | uint32(e)) }
	allow := ret(unix.SECCOMP_RET_ALLOW)

	prog := []unix.SockFilter{
		load(offArch),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: auditArch},
		ret(unix.SECCOMP_RET_KILL_PROCESS),
		load(offCall),
	}
	add := func(steps []unix.SockFilter) { prog = append(prog, steps...) }
	add(when(unix.BPF_JGE, x32Calls, refuse(unix.ENOSYS)))
	for _, nr := range deniedCalls {
		add(when(unix.BPF_JEQ, nr, refuse(unix.EPERM)))
	}
	// Its flags are in memory, out of a filter's sight; libraries fall back to clone.
	add(when(unix.BPF_JEQ, unix.SYS_CLONE3, refuse(unix.ENOSYS)))

	clone := append([]unix.SockFilter{load(offArg0)}, when(unix.BPF_JSET, newNamespaces, refuse(unix.EPERM))...)
	add(when(unix.BPF_JEQ, unix.SYS_CLONE, append(clone, allow)...))

	ioctl := []unix.SockFilter{load(offArg1)}
	for _, request := range []uint32{unix.TIOCSTI, tiocLinux} {
		ioctl = append(ioctl, when(unix.BPF_JEQ, request, refuse(unix.EPERM))...)
	}
	add(when(unix.BPF_JEQ, unix.SYS_IOCTL, append(ioctl, allow)...))

	socket := []unix.SockFilter{load(offArg0)}
	if !noSockets {
		for _, family := range []uint32{unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK} {
			socket = append(socket, when(unix.BPF_JEQ, family, allow)...)
		}
	}
	add(when(unix.BPF_JEQ, unix.SYS_SOCKET, append(socket, refuse(unix.EACCES))...))
	return append(prog, allow)
}

// tiocLinux is the request by which a console is made to paste.
const tiocLinux = 0x541c

//go:build unix

package sandbox

import (
	"os/exec"
	"syscall"
)

// ownGroup makes a command the leader of a process group, and its Cancel a kill
// of that group.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

// KillGroup ends what a command left in its process group. It is for after Wait,
// and does nothing that matters where a helper has seen to it.
func KillGroup(cmd *exec.Cmd) {
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
}

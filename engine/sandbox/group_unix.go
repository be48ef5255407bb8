//go:build unix

package sandbox

import (
	"os/exec"
	"syscall"
)

// OwnGroup makes a command that is not confined the leader of a process group,
// and its Cancel a kill of that group.
func OwnGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

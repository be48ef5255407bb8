//go:build !linux

package sandbox

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// Probe reports what this machine offers: nothing on this system.
func Probe(Helper) Status { return Status{} }

// serve is never asked for here: nothing starts a helper.
func serve(string, []string) int {
	fmt.Fprintln(os.Stderr, helperName+": there is no sandbox on this system")
	return exitHelper
}

func (s *Sandbox) command(ctx context.Context, job Job, argv []string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = job.Dir
	cmd.Env = environ(job.Dir, job.Temp, job.Env)
	cmd.WaitDelay = 800 * time.Millisecond
	OwnGroup(cmd)
	return cmd, nil
}

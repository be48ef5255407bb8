//go:build !linux

package sandbox

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

// Probe reports what this machine offers: nothing on this system.
func Probe(Helper) Status { return Status{} }

// serve is never asked for here: nothing starts a helper.
func serve(string, []string) int {
	fmt.Fprintln(os.Stderr, helperName+": there is no sandbox on this system")
	return exitHelper
}

func (s *Sandbox) command(ctx context.Context, job Job, argv []string) (*exec.Cmd, error) {
	return unconfined(ctx, job, argv), nil
}

//go:build !unix

package sandbox

import "os/exec"

// ownGroup does nothing on this system: Cancel kills the command alone.
func ownGroup(*exec.Cmd) {}

// KillGroup does nothing on this system.
func KillGroup(*exec.Cmd) {}

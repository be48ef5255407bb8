package session_test

import (
	"testing"

	"trill/engine/session"
	"trill/engine/session/sessiontest"
)

func TestMemory(t *testing.T) {
	sessiontest.Run(t, func(*testing.T) session.Store { return session.NewMemory() })
}

// Package tool is the contract of what a model may use, and of the gates that a
// call passes before it runs.
//
// A tool is a .go file with what it does and a .md file beside it that tells the
// model what it is for. The built-in ones are in this package: files and shell,
// confined to a workspace. Which of them a session has, and in which order gates
// are asked, is decided in package engine.
package tool

import (
	"context"
	"encoding/json"
	"os"
	"time"
)

// Tool is something a model can call. Run may be called from several goroutines
// at once when the tool is read-only.
type Tool interface {
	Spec() Spec

	// Run does it. The arguments have been validated against the schema. What
	// went wrong in a way the model can act on is a Result with Failed set; an
	// error ends the run. It returns soon after ctx is done, and leaves
	// nothing running.
	Run(ctx context.Context, env Env, args json.RawMessage) (Result, error)
}

// Spec describes a tool.
type Spec struct {
	Name        string
	Description string          // for the model
	Schema      json.RawMessage // JSON schema of the arguments, an object
	// ReadOnly tools change nothing: they may run beside each other, and again
	// after a crash.
	ReadOnly bool
	Timeout  time.Duration // 0: the engine's
}

// Operation says whether a call reads or changes something.
type Operation string

// The operations of a call.
const (
	Get Operation = "get"
	Set Operation = "set"
)

// Operation returns what calls of the tool do.
func (s Spec) Operation() Operation {
	if s.ReadOnly {
		return Get
	}
	return Set
}

// Env is where a call runs.
type Env struct {
	// Root is the workspace; file tools reach nothing outside it.
	Root *os.Root
	// Dir is the workspace's absolute path, for commands.
	Dir string
}

// Result is what a call gave, for the model to read.
type Result struct {
	Text   string
	Failed bool
}

// Failure returns a result that tells the model what went wrong.
func Failure(text string) Result { return Result{Text: text, Failed: true} }

// Call is one use of a tool, as the gates see it.
type Call struct {
	ID   string
	Spec Spec
	Args json.RawMessage
	// Person and Role are who asked for the run: channel:platform-id, and the
	// access that person has.
	Person string
	Role   string
	// Channel is where the run came from; empty outside of a chat.
	Channel string
}

// Decision is what a gate says about a call.
type Decision string

// The decisions, from the least to the most strict.
const (
	Allow Decision = "allow"
	Ask   Decision = "ask" // a person must allow it
	Deny  Decision = "deny"
)

// Verdict is a gate's decision with its reason, which the model and the people
// may read.
type Verdict struct {
	Decision Decision
	Reason   string
}

// Gate is asked before a call runs. The strictest verdict of all gates counts; a
// gate that cannot tell returns Deny.
type Gate interface {
	Judge(ctx context.Context, call Call) Verdict
}

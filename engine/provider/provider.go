// Package provider is the contract of whatever answers for a model: one call,
// streamed. It holds no retry, no routing and no state between calls; those are
// package engine's.
//
// Sub-packages implement it: openai for any server with OpenAI's chat API,
// offline for rehearsals without a model. Package providertest has a scripted
// one, and the suite that every provider must pass.
package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"trill/engine/message"
)

// Provider calls a model. Stream may be called from several goroutines at once.
type Provider interface {
	// Stream asks the model and returns its complete message. While text
	// arrives, each piece is handed to onText, if that is not nil, in order and
	// from the calling goroutine. A response that broke off, or lacks its
	// finish, is an error, not a short answer. It returns soon after ctx is
	// done. An error is an *Error, or ctx's.
	Stream(ctx context.Context, req Request, onText func(string)) (*Response, error)
}

// Request is everything a model gets to see. Equal requests give byte-equal
// prompts.
type Request struct {
	System   string
	Messages []message.Message
	Tools    []Tool // sorted by name
}

// Tool describes a tool to the model.
type Tool struct {
	Name        string
	Description string
	Schema      json.RawMessage // JSON schema of the arguments, an object
}

// Response is one complete message of the model.
type Response struct {
	Text  string
	Calls []message.Call
	// Cut says that the model ran into its output limit: the text is
	// incomplete and no call is to be trusted.
	Cut   bool
	Model string
	Usage message.Usage
}

// Class says what can be done about an error.
type Class string

// The classes of an [Error].
const (
	ClassRetry   Class = "retry"   // passing: try again
	ClassContext Class = "context" // the prompt does not fit the model's window
	ClassAuth    Class = "auth"    // key, quota or permission: an operator must act
	ClassRequest Class = "request" // the request itself is refused; again would be the same
)

// Error is why a model gave no answer. Its text is for the log: a body of the
// server is not part of it, as it may echo a key.
type Error struct {
	Class      Class
	Status     int           // of HTTP, 0 when there was no answer
	RetryAfter time.Duration // the least time to wait, as the server said
	Usage      message.Usage // spent all the same, where known
	Err        error
}

func (e *Error) Error() string {
	if e.Status != 0 {
		return fmt.Sprintf("model: %d: %v", e.Status, e.Err)
	}
	return fmt.Sprintf("model: %v", e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// ClassOf returns the class of a provider's error; an unknown one may pass.
func ClassOf(err error) Class {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	return ClassRetry
}

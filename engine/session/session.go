// Package session is the transcript of a conversation: append-only events, and
// the contract of whatever stores them.
//
// An event is never changed after it was appended. What a model is sent is a
// projection of events, made by package engine; what a person is shown is
// another.
package session

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"trill/engine/message"
)

// ID names a session: "sess_" and a ULID.
type ID string

// RunID names one request until its answer: "run_" and a ULID.
type RunID string

// Kind says what an event records.
type Kind string

// The kinds of events, with the payload each carries.
const (
	KindUser       Kind = "user"        // *User: what a person asked
	KindAssistant  Kind = "assistant"   // *Assistant: one whole answer of the model
	KindToolStart  Kind = "tool_start"  // *ToolStart: a call with effects is about to run
	KindToolResult Kind = "tool_result" // *ToolResult: what the call gave
	KindPermission Kind = "permission"  // *Permission: a call was refused, or somebody was asked
	KindRetry      Kind = "retry"       // *Retry: a model call failed and is tried again
	KindTrim       Kind = "trim"        // *Trim: older events leave the prompt
	KindEnd        Kind = "end"         // *End: the run is over
)

// Event is one record of a transcript.
type Event struct {
	Session ID        `json:"session"`
	Seq     int64     `json:"seq"` // 1, 2, 3, ... without a gap
	Run     RunID     `json:"run"`
	Time    time.Time `json:"time"`
	Kind    Kind      `json:"kind"`
	// Data is one of the payloads of this package, matching Kind.
	Data any `json:"data"`
}

// User is what a person asked, or added while a run was under way.
type User struct {
	Text    string `json:"text"`
	Name    string `json:"name,omitempty"`   // for display; controlled by that person
	Person  string `json:"person,omitempty"` // channel:platform-id
	Steered bool   `json:"steered,omitempty"`
	// Quoted is text of somebody else that the message refers to.
	Quoted      string   `json:"quoted,omitempty"`
	Attachments []string `json:"attachments,omitempty"` // one readable line each
}

// Assistant is one complete message of the model.
type Assistant struct {
	Text  string         `json:"text,omitempty"`
	Calls []message.Call `json:"calls,omitempty"`
	Model string         `json:"model"`
	Usage message.Usage  `json:"usage"`
	// Wasted counts tokens of attempts that gave nothing, where the provider
	// reported them.
	Wasted message.Usage `json:"wasted,omitzero"`
}

// ToolStart says that a call that is not read-only was allowed and is about to
// run. With no ToolResult after it, its effect is unknown.
type ToolStart struct {
	CallID string `json:"call_id"`
	Tool   string `json:"tool"`
}

// ToolResult is what a call gave.
type ToolResult struct {
	CallID string `json:"call_id"`
	Tool   string `json:"tool"`
	Text   string `json:"text"`
	Failed bool   `json:"failed,omitempty"`
	// Took is how long the call ran; 0 when it did not run.
	Took time.Duration `json:"took,omitempty"`
}

// Permission is a decision about a call that was not simply allowed.
type Permission struct {
	CallID   string `json:"call_id"`
	Tool     string `json:"tool"`
	Decision string `json:"decision"` // allow | deny
	Reason   string `json:"reason"`   // the rule, or what the person said
	By       string `json:"by,omitempty"`
}

// Retry is a model call that failed and is tried again.
type Retry struct {
	Attempt int           `json:"attempt"`
	Delay   time.Duration `json:"delay"`
	Error   string        `json:"error"`
}

// Trim says that the prompt begins at event From from now on.
type Trim struct {
	From int64 `json:"from"`
	// Task is the request being worked on, when it is before From.
	Task string `json:"task,omitempty"`
}

// EndReason says why a run ended.
type EndReason string

// The reasons.
const (
	EndAnswered EndReason = "answered"
	EndStopped  EndReason = "stopped" // a person stopped it
	EndFailed   EndReason = "failed"
)

// End closes a run.
type End struct {
	Reason EndReason `json:"reason"`
	// Text is what the people in the thread are told.
	Text string `json:"text,omitempty"`
	// Error is the cause, for operators.
	Error string `json:"error,omitempty"`
}

var (
	// ErrNotFound means that there is no such session.
	ErrNotFound = errors.New("no such session")
	// ErrConflict means that somebody else appended first: this run is no
	// longer ours.
	ErrConflict = errors.New("transcript was continued by another process")
)

// Store keeps transcripts. Its methods may be called from several goroutines.
type Store interface {
	// Append stores events in one step, all or none. Their Seq must continue
	// the session's transcript without a gap, or it is ErrConflict. Creating a
	// session is appending event 1.
	Append(ctx context.Context, evs ...Event) error

	// Events returns the events with Seq > after in order, at most limit of
	// them; limit 0 means all. An unknown session has none.
	Events(ctx context.Context, id ID, after int64, limit int) ([]Event, error)

	// Prompt returns the events that the prompt is made of: those from the
	// newest Trim's From on, or all.
	Prompt(ctx context.Context, id ID) ([]Event, error)

	// Last returns the Seq of the newest event, 0 for an unknown session.
	Last(ctx context.Context, id ID) (int64, error)
}

// New returns the empty payload of a kind, for decoding; nil for a kind that is
// not known.
func New(k Kind) any {
	switch k {
	case KindUser:
		return new(User)
	case KindAssistant:
		return new(Assistant)
	case KindToolStart:
		return new(ToolStart)
	case KindToolResult:
		return new(ToolResult)
	case KindPermission:
		return new(Permission)
	case KindRetry:
		return new(Retry)
	case KindTrim:
		return new(Trim)
	case KindEnd:
		return new(End)
	}
	return nil
}

// KindOf returns the kind of a payload, empty for anything else.
func KindOf(data any) Kind {
	switch data.(type) {
	case *User:
		return KindUser
	case *Assistant:
		return KindAssistant
	case *ToolStart:
		return KindToolStart
	case *ToolResult:
		return KindToolResult
	case *Permission:
		return KindPermission
	case *Retry:
		return KindRetry
	case *Trim:
		return KindTrim
	case *End:
		return KindEnd
	}
	return ""
}

// Decode reads a payload as it was stored. A kind that this version does not
// know stays as it is, so that a transcript of a newer version can be shown.
func Decode(k Kind, data []byte) (any, error) {
	p := New(k)
	if p == nil {
		return json.RawMessage(data), nil
	}
	if err := json.Unmarshal(data, p); err != nil {
		return nil, err
	}
	return p, nil
}

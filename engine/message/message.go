// Package message is the vocabulary of a conversation with a model: who said
// what, which tools were called, and what they answered. It knows no provider's
// wire format and nothing is stored in this form: messages are a projection of a
// session's events.
package message

import "encoding/json"

// Role says who speaks.
type Role string

// The roles. The system prompt is not a message.
const (
	User      Role = "user"
	Assistant Role = "assistant"
	Tool      Role = "tool" // the result of one call
)

// Message is one entry of the conversation.
type Message struct {
	Role Role
	Text string
	// Calls are the tool calls of an assistant message, in its order.
	Calls []Call
	// CallID and Tool say which call a tool message answers.
	CallID string
	Tool   string
	// Failed marks the result of a call that did not succeed.
	Failed bool
}

// Call is a model's wish to use a tool.
type Call struct {
	ID   string          `json:"id"`
	Tool string          `json:"tool"`
	Args json.RawMessage `json:"args"` // as the model wrote it; may be no JSON at all
}

// MarshalJSON writes arguments that are no JSON as a string, so that a transcript
// with a model's mistake in it can still be written.
func (c Call) MarshalJSON() ([]byte, error) {
	type plain Call
	p := plain(c)
	if !json.Valid(p.Args) {
		quoted, err := json.Marshal(string(p.Args))
		if err != nil {
			return nil, err
		}
		p.Args = quoted
	}
	return json.Marshal(p)
}

// Usage counts tokens of one model call, as the provider reported them.
type Usage struct {
	Input       int `json:"input"`                  // the whole prompt, cached part included
	Output      int `json:"output"`                 // reasoning included
	CachedInput int `json:"cached_input,omitempty"` // the part of Input read from a cache
	Reasoning   int `json:"reasoning,omitempty"`
}

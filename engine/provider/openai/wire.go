package openai

import (
	"bytes"
	"encoding/json"
	"fmt"

	"trill/engine/message"
	"trill/engine/provider"
)

// chatRequest is the body of a request. It is ours and not go-openai's, as that
// leaves out empty texts, which servers then miss.
type chatRequest struct {
	Model     string        `json:"model"`
	Messages  []chatMessage `json:"messages"`
	Tools     []chatTool    `json:"tools,omitempty"`
	MaxOutput int           `json:"max_completion_tokens,omitempty"`
	Stream    bool          `json:"stream"`
	Options   streamOptions `json:"stream_options"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type chatMessage struct {
	Role    string     `json:"role"`
	Content *string    `json:"content"` // null beside calls, never empty
	Calls   []chatCall `json:"tool_calls,omitempty"`
	CallID  string     `json:"tool_call_id,omitempty"`
}

type chatCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function chatFunction `json:"function"`
}

type chatFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type chatTool struct {
	Type     string   `json:"type"`
	Function toolSpec `json:"function"`
}

type toolSpec struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
}

// What stands for an empty text: servers refuse messages without any.
const (
	noOutput = "(no output)"
	noText   = "(no text)"
)

// encode makes the body of a request. Equal requests give equal bytes.
func encode(conf *Config, req *provider.Request) ([]byte, error) {
	out := chatRequest{
		Model:     conf.Model,
		Messages:  make([]chatMessage, 0, len(req.Messages)+1),
		MaxOutput: conf.MaxOutput,
		Stream:    true,
		Options:   streamOptions{IncludeUsage: true},
	}
	if req.System != "" {
		out.Messages = append(out.Messages, chatMessage{Role: "system", Content: &req.System})
	}
	for i := range req.Messages {
		m, err := encodeMessage(&req.Messages[i])
		if err != nil {
			return nil, err
		}
		out.Messages = append(out.Messages, m)
	}
	for _, t := range req.Tools {
		schema := t.Schema
		if len(schema) == 0 {
			schema = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		if !json.Valid(schema) {
			return nil, fmt.Errorf("tool %q: its schema is not JSON", t.Name)
		}
		out.Tools = append(out.Tools, chatTool{"function", toolSpec{t.Name, t.Description, schema}})
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func encodeMessage(m *message.Message) (chatMessage, error) {
	text := m.Text
	switch m.Role {
	case message.User:
		if text == "" {
			text = noText
		}
		return chatMessage{Role: "user", Content: &text}, nil
	case message.Tool:
		if text == "" {
			text = noOutput
		}
		if m.Failed {
			// The API has no sign for it, and some results do not tell.
			text = "Failed: " + text
		}
		return chatMessage{Role: "tool", Content: &text, CallID: m.CallID}, nil
	case message.Assistant:
		out := chatMessage{Role: "assistant", Content: &text}
		for _, c := range m.Calls {
			out.Calls = append(out.Calls, chatCall{c.ID, "function", chatFunction{c.Tool, echoArgs(c.Args)}})
		}
		if text == "" {
			out.Content = nil
			if len(out.Calls) == 0 {
				text, out.Content = noText, &text
			}
		}
		return out, nil
	}
	return chatMessage{}, fmt.Errorf("message of role %q", m.Role)
}

// echoArgs returns a call's arguments as a server accepts them in the history:
// the text of a JSON object. Some parse it, to fit the model's own template, and
// refuse the whole conversation for one bad call. What is no object is wrapped
// as {"invalid_arguments": "what the model wrote"}, so that the model can see
// its mistake.
func echoArgs(args json.RawMessage) string {
	trimmed := bytes.TrimSpace(args)
	if len(trimmed) == 0 {
		return "{}"
	}
	if trimmed[0] == '{' && json.Valid(trimmed) {
		return string(trimmed)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	// A map of one string cannot fail to encode.
	_ = enc.Encode(map[string]string{"invalid_arguments": string(args)})
	return string(bytes.TrimSpace(b.Bytes()))
}

package openai

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"trill/engine/message"
	"trill/engine/provider"
)

const (
	maxText  = 10 << 20 // bytes of an answer's text
	maxArgs  = 10 << 20 // bytes of the arguments of all calls together
	maxCalls = 256
	maxName  = 256 // bytes of a tool's or a model's name
	maxID    = 128
)

// chunk is one event of the stream.
type chunk struct {
	Model   string          `json:"model"`
	Choices []choice        `json:"choices"` // may lack, beside the usage
	Usage   *usage          `json:"usage"`
	Error   json.RawMessage `json:"error"`
}

type choice struct {
	Index  int             `json:"index"`
	Delta  delta           `json:"delta"`
	Finish string          `json:"finish_reason"`
	Error  json.RawMessage `json:"error"`
}

// delta is a piece of the message. What a model thinks comes under
// reasoning_content or reasoning and is no part of the answer: neither is read.
type delta struct {
	Content content     `json:"content"`
	Refusal string      `json:"refusal"` // the model's words for a no
	Calls   []callDelta `json:"tool_calls"`
}

type callDelta struct {
	Index    *int   `json:"index"`
	ID       string `json:"id"`
	Function struct {
		Name string    `json:"name"`
		Args arguments `json:"arguments"`
	} `json:"function"`
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	PromptPart struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionPart struct {
		Reasoning int `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
	CacheHit int `json:"prompt_cache_hit_tokens"` // DeepSeek's name for it
}

// content is text, or where a model thinks aloud a list of parts of which some
// are text.
type content string

// UnmarshalJSON reads either form.
func (c *content) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '[' {
		var parts []struct {
			Type string `json:"type"`
			Text string `json:"text"`
		}
		if err := json.Unmarshal(data, &parts); err != nil {
			return err
		}
		for _, p := range parts {
			if p.Type == "text" {
				*c += content(p.Text)
			}
		}
		return nil
	}
	return json.Unmarshal(data, (*string)(c))
}

// arguments are a piece of a string; some servers give the object itself.
type arguments string

// UnmarshalJSON reads either form.
func (a *arguments) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '{' {
		*a = arguments(data)
		return nil
	}
	return json.Unmarshal(data, (*string)(a))
}

// assembler makes one message of a stream's chunks. Its errors are
// *provider.Error.
type assembler struct {
	onText func(string)
	model  string

	text    strings.Builder
	calls   []*callParts
	byIndex map[int]*callParts
	latest  *callParts
	args    int // bytes, of all calls
	finish  string
	usage   message.Usage
}

type callParts struct {
	id, name string
	args     []byte
}

// malformed is the error of an answer that another try may mend.
func malformed(format string, args ...any) *provider.Error {
	return &provider.Error{Class: provider.ClassRetry, Err: fmt.Errorf(format, args...)}
}

// add takes in one chunk.
func (a *assembler) add(data []byte) error {
	if text, model, ok := quick(data); ok && (len(model) == 0 || string(model) == a.model) {
		return a.say(string(text))
	}
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return malformed("an event of the answer is malformed")
	}
	if c.Model != "" && len(c.Model) <= maxName {
		a.model = c.Model
	}
	if c.Usage != nil {
		a.usage = c.Usage.count()
	}
	if e := fault(c.Error); e != nil {
		return e
	}
	for i := range c.Choices {
		ch := &c.Choices[i]
		if e := fault(ch.Error); e != nil {
			return e
		}
		if ch.Index != 0 {
			continue // one answer was asked for
		}
		for _, piece := range []string{string(ch.Delta.Content), ch.Delta.Refusal} {
			if err := a.say(piece); err != nil {
				return err
			}
		}
		for j := range ch.Delta.Calls {
			if err := a.call(j, len(ch.Delta.Calls), &ch.Delta.Calls[j]); err != nil {
				return err
			}
		}
		if a.finish == "" && ch.Finish != "null" {
			a.finish = ch.Finish
		}
	}
	return nil
}

func (a *assembler) say(piece string) error {
	if piece == "" {
		return nil
	}
	if a.text.Len()+len(piece) > maxText {
		return malformed("the answer's text is larger than 10 MB")
	}
	a.text.WriteString(piece)
	if a.onText != nil {
		a.onText(piece)
	}
	return nil
}

// call takes in a piece of a tool call, which is number pos of n in its chunk.
func (a *assembler) call(pos, n int, d *callDelta) error {
	p := a.find(pos, n, d)
	if p == nil {
		if len(a.calls) == maxCalls {
			return malformed("the answer has more than %d tool calls", maxCalls)
		}
		p = new(callParts)
		a.calls = append(a.calls, p)
		if d.Index != nil {
			if a.byIndex == nil {
				a.byIndex = map[int]*callParts{}
			}
			a.byIndex[*d.Index] = p
		}
	}
	a.latest = p
	p.id = cmp.Or(p.id, d.ID)
	if d.Function.Name != p.name { // some repeat the name with every piece
		p.name += d.Function.Name
	}
	if len(p.name) > maxName {
		return malformed("a tool call's name is longer than %d bytes", maxName)
	}
	a.args += len(d.Function.Args)
	if a.args > maxArgs {
		return malformed("the arguments of the answer's tool calls are larger than 10 MB")
	}
	p.args = append(p.args, d.Function.Args...)
	return nil
}

// find returns the call that a piece continues, nil if it begins one. Servers
// number calls by index, but some give none, or 0 to every call; then the id
// tells, then whether there is a name, then the position.
func (a *assembler) find(pos, n int, d *callDelta) *callParts {
	begins := d.Function.Name != ""
	if d.Index != nil {
		p := a.byIndex[*d.Index]
		if p != nil && begins && d.ID != "" && p.id != "" && d.ID != p.id {
			return nil // another call under the same number
		}
		return p
	}
	if d.ID != "" {
		for _, p := range a.calls {
			if p.id == d.ID {
				return p
			}
		}
	}
	switch {
	case begins:
		return nil
	case n > 1 && pos < len(a.calls):
		return a.calls[pos]
	}
	return a.latest
}

// spent adds the tokens that a failed answer cost.
func (a *assembler) spent(err error) error {
	if e, ok := errors.AsType[*provider.Error](err); ok {
		e.Usage = a.usage
	}
	return err
}

// response returns the message, once it has its finish.
func (a *assembler) response() (*provider.Response, error) {
	resp := &provider.Response{Text: a.text.String(), Model: a.model, Usage: a.usage}
	switch a.finish {
	case "length", "max_tokens", "model_length":
		resp.Cut = true
	case "content_filter", "sensitive":
		return nil, &provider.Error{Class: provider.ClassRequest, Err: errors.New("the server's content filter stopped the answer")}
	case "error", "network_error", "insufficient_system_resource", "aborted":
		return nil, malformed("the server gave up on its answer (%s)", a.finish)
	}
	// Any other finish is complete: calls come with "stop" from many servers.
	ids := map[string]bool{}
	for _, p := range a.calls {
		if p.name == "" && !resp.Cut {
			return nil, malformed("a tool call has no name")
		}
		if !usableID(p.id) || ids[p.id] {
			p.id = "call_" + rand.Text()
		}
		ids[p.id] = true
		if len(bytes.TrimSpace(p.args)) == 0 {
			p.args = []byte("{}") // how servers write a call without arguments
		}
		resp.Calls = append(resp.Calls, message.Call{ID: p.id, Tool: p.name, Args: p.args})
	}
	return resp, nil
}

// usableID reports whether an id can be kept, shown and sent back.
func usableID(id string) bool {
	return id != "" && len(id) <= maxID &&
		!strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' })
}

func (u *usage) count() message.Usage {
	in := max(0, u.Prompt)
	out := max(0, u.Completion)
	return message.Usage{
		Input:       in,
		Output:      out,
		CachedInput: min(in, max(0, u.PromptPart.Cached, u.CacheHit)),
		Reasoning:   min(out, max(0, u.CompletionPart.Reasoning)),
	}
}

// Package offline plays a model without being one: it needs no network and no
// key. It is for rehearsals, for the demo and for tests, and says so in every
// answer.
//
// Its answers are a function of the request alone. It understands a few plain
// phrases, turns them into calls of the tools that the
// request offers, and tells what came of them. Everything else it answers with
// how to set up a real model.
package offline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"trill/engine/message"
	"trill/engine/provider"
)

// Model is the name that responses carry.
const Model = "offline-rehearsal"

// Config says how the rehearsal goes.
type Config struct {
	// Pace is the pause after each word, so that an answer looks alive; 0 is
	// none.
	Pace time.Duration
}

// Provider answers without a model. It may be used from several goroutines at
// once.
type Provider struct {
	conf Config
}

var _ provider.Provider = (*Provider)(nil)

// New returns a provider.
func New(conf Config) (*Provider, error) {
	if conf.Pace < 0 {
		return nil, errors.New("offline config: pace: must not be negative")
	}
	return &Provider{conf: conf}, nil
}

// String says what this is.
func (p *Provider) String() string { return "offline rehearsal, no model" }

// Stream implements [provider.Provider]. Text is streamed word by word; the only
// error is ctx's.
func (p *Provider) Stream(ctx context.Context, req provider.Request, onText func(string)) (*provider.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	text, calls := answer(&req)
	for i := range calls {
		calls[i].ID = callID(&req, i)
	}
	for word := range words(text) {
		if onText != nil {
			onText(word)
		}
		if err := p.pause(ctx); err != nil {
			return nil, err
		}
	}
	return &provider.Response{Text: text, Calls: calls, Model: Model, Usage: usage(&req, text, calls)}, nil
}

func (p *Provider) pause(ctx context.Context) error {
	if p.conf.Pace == 0 {
		return ctx.Err()
	}
	t := time.NewTimer(p.conf.Pace)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// words yields the text word by word, each with the white space after it.
func words(text string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for text != "" {
			n := strings.IndexAny(text, " \n")
			if n < 0 {
				n = len(text)
			}
			for n < len(text) && (text[n] == ' ' || text[n] == '\n') {
				n++
			}
			if !yield(text[:n]) {
				return
			}
			text = text[n:]
		}
	}
}

// callID names the i-th call of the answer to a request. The history is part of
// the name, so no two calls of a session share one.
func callID(req *provider.Request, i int) string {
	h := sha256.New()
	enc := json.NewEncoder(h)
	for _, m := range req.Messages {
		// Arguments are hashed as text: they may be no JSON. A hash takes
		// everything, and strings always encode.
		_ = enc.Encode([]string{string(m.Role), m.Text, m.CallID})
		for _, c := range m.Calls {
			_ = enc.Encode([]string{c.ID, c.Tool, string(c.Args)})
		}
	}
	_ = enc.Encode(i)
	return "call_" + hex.EncodeToString(h.Sum(nil)[:10])
}

// bytesPerToken is what models have on average for English.
const bytesPerToken = 4

// usage is an estimate, but the same every time.
func usage(req *provider.Request, text string, calls []message.Call) message.Usage {
	in, out := len(req.System), len(text)
	for _, m := range req.Messages {
		in += len(m.Text)
		for _, c := range m.Calls {
			in += len(c.Tool) + len(c.Args)
		}
	}
	for _, t := range req.Tools {
		in += len(t.Name) + len(t.Description) + len(t.Schema)
	}
	for _, c := range calls {
		out += len(c.Tool) + len(c.Args)
	}
	return message.Usage{Input: 1 + in/bytesPerToken, Output: 1 + out/bytesPerToken}
}

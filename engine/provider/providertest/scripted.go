// Package providertest has a model that follows a script, for tests of what uses
// a provider, and the suite that every provider must pass.
package providertest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"trill/engine/message"
	"trill/engine/provider"
)

// Step is what a [Scripted] provider does with one request, in this order: Do,
// Wait, then Err or the answer.
type Step struct {
	Do    func(provider.Request)
	Wait  <-chan struct{} // until this is closed or gives a value
	Text  string
	Calls []message.Call
	Cut   bool
	Usage message.Usage
	// Err is returned in place of the answer, after Text was streamed.
	Err error
}

// Scripted is a provider that answers by script. Its methods may be called from
// several goroutines at once; steps are taken in the order of the requests.
type Scripted struct {
	mu       sync.Mutex // guards what follows
	steps    []Step
	requests []provider.Request
}

var _ provider.Provider = (*Scripted)(nil)

// New returns a provider that takes these steps. A request after the last one is
// an error that no retry mends.
func New(steps ...Step) *Scripted { return &Scripted{steps: steps} }

// Add adds steps at the end of the script.
func (s *Scripted) Add(steps ...Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, steps...)
}

// Requests returns what was asked so far.
func (s *Scripted) Requests() []provider.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Left returns how many steps nobody has asked for yet.
func (s *Scripted) Left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.steps)
}

func (s *Scripted) next(req provider.Request) (Step, bool) {
	req.Messages = slices.Clone(req.Messages)
	req.Tools = slices.Clone(req.Tools)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, req)
	if len(s.steps) == 0 {
		return Step{}, false
	}
	step := s.steps[0]
	s.steps = s.steps[1:]
	return step, true
}

// Stream takes the next step. Text is streamed word by word.
func (s *Scripted) Stream(ctx context.Context, req provider.Request, onText func(string)) (*provider.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	step, ok := s.next(req)
	if !ok {
		return nil, &provider.Error{Class: provider.ClassRequest, Err: errors.New("the script has no step for this request")}
	}
	if step.Do != nil {
		step.Do(req)
	}
	if step.Wait != nil {
		select {
		case <-step.Wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	for word := range strings.SplitAfterSeq(step.Text, " ") {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if onText != nil && word != "" {
			onText(word)
		}
	}
	if step.Err != nil {
		return nil, step.Err
	}
	return &provider.Response{
		Text: step.Text, Calls: slices.Clone(step.Calls), Cut: step.Cut, Model: "scripted", Usage: step.Usage,
	}, nil
}

// Func is a provider made of a function. Its text is streamed in one piece.
type Func func(context.Context, provider.Request) (*provider.Response, error)

// Stream calls the function.
func (f Func) Stream(ctx context.Context, req provider.Request, onText func(string)) (*provider.Response, error) {
	resp, err := f(ctx, req)
	if err == nil && onText != nil && resp.Text != "" {
		onText(resp.Text)
	}
	return resp, err
}

package providertest_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"trill/engine/message"
	"trill/engine/provider"
	"trill/engine/provider/providertest"
)

func TestScriptedKeepsThePromises(t *testing.T) {
	fail := func(class provider.Class) error {
		return &provider.Error{Class: class, Err: errors.New("scripted")}
	}
	busy := &provider.Error{Class: provider.ClassRetry, Status: 429, RetryAfter: providertest.RetryAfter, Err: errors.New("busy")}
	faults := map[providertest.Fault]error{
		providertest.FaultBusy:       busy,
		providertest.FaultOverloaded: fail(provider.ClassRetry),
		providertest.FaultDown:       fail(provider.ClassRetry),
		providertest.FaultInStream:   fail(provider.ClassRetry),
		providertest.FaultBroken:     fail(provider.ClassRetry),
		providertest.FaultUnfinished: fail(provider.ClassRetry),
		providertest.FaultGarbled:    fail(provider.ClassRetry),
		providertest.FaultKey:        fail(provider.ClassAuth),
		providertest.FaultQuota:      fail(provider.ClassAuth),
		providertest.FaultTooLong:    fail(provider.ClassContext),
		providertest.FaultRefused:    fail(provider.ClassRequest),
	}
	providertest.Run(t, providertest.Harness{Start: func(t *testing.T, answers ...providertest.Answer) providertest.Peer {
		s := providertest.New()
		for _, a := range answers {
			step := providertest.Step{Text: strings.Join(a.Pieces, ""), Calls: a.Calls, Usage: a.Usage, Cut: a.Cut, Err: faults[a.Fault]}
			if a.Fault == providertest.FaultHang {
				// Text comes after Wait, so the caller leaves in its midst.
				if step.Text == "" {
					step.Wait = make(chan struct{})
				}
				step.Text += "and never more"
			}
			s.Add(step)
		}
		return providertest.Peer{Provider: s}
	}})
}

func TestScriptedRecordsAndRunsOut(t *testing.T) {
	asked := ""
	s := providertest.New(providertest.Step{Text: "one", Do: func(r provider.Request) { asked = r.Messages[0].Text }})
	req := provider.Request{Messages: []message.Message{{Role: message.User, Text: "first"}}}
	if _, err := s.Stream(t.Context(), req, nil); err != nil {
		t.Fatal(err)
	}
	if asked != "first" || s.Left() != 0 {
		t.Errorf("Do saw %q, %d steps left", asked, s.Left())
	}
	req.Messages[0].Text = "changed afterwards"
	if got := s.Requests()[0].Messages[0].Text; got != "first" {
		t.Errorf("the record changed to %q", got)
	}
	if _, err := s.Stream(t.Context(), req, nil); provider.ClassOf(err) != provider.ClassRequest {
		t.Errorf("after the script: %v", err)
	}
}

func TestFuncStreamsItsText(t *testing.T) {
	var p provider.Provider = providertest.Func(func(context.Context, provider.Request) (*provider.Response, error) {
		return &provider.Response{Text: "hi"}, nil
	})
	got := ""
	if resp, err := p.Stream(t.Context(), provider.Request{}, func(s string) { got += s }); err != nil || resp.Text != "hi" || got != "hi" {
		t.Errorf("got %v, %v, streamed %q", resp, err, got)
	}
}

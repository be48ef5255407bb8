package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"trill/engine/message"
	"trill/engine/provider"
	"trill/engine/session"
	"trill/engine/tool"
)

// run is one request being worked on. One goroutine owns it.
type run struct {
	eng    *Engine
	req    Request
	ctx    context.Context
	cancel context.CancelCauseFunc
	log    *slog.Logger

	yield func(Event, error) bool
	left  bool // the caller has left the loop

	t      *transcript
	wasted message.Usage // of model calls that gave nothing, since the last that did
	env    tool.Env
	root   *os.Root
	stuck  stuckGuard
}

// work runs the loop: ask the model, run the tools it wants, until it answers
// with text alone.
func (r *run) work() error {
	if err := r.open(); err != nil {
		return err
	}
	defer r.close()
	if r.t.ended {
		return nil // it ended before the crash that it is taken up from
	}
	empty := 0
	for {
		if err := r.ctx.Err(); err != nil {
			return r.interrupted()
		}
		if len(r.t.pending) > 0 {
			if err := r.calls(); err != nil {
				return r.broken(err)
			}
			if r.stuck.over() {
				return r.fail(errors.New("the same call failed the same way again and again"),
					"I kept running into the same problem and stopped before wasting more time on it.")
			}
			continue
		}
		if err := r.steer(); err != nil {
			return err
		}
		if err := r.makeRoom(); err != nil {
			return err
		}
		resp, err := r.ask()
		if err != nil {
			return r.broken(err)
		}
		text := r.eng.conf.Redact(strings.TrimSpace(resp.Text))
		a := &session.Assistant{Text: text, Calls: resp.Calls, Model: resp.Model, Usage: resp.Usage, Wasted: r.wasted}
		switch {
		case resp.Cut && len(a.Calls) > 0:
			// The last call is incomplete and none of them is to be trusted.
			a.Calls = nil
			if text == "" {
				text = "(no text)"
			}
			a.Text = text + "\n\n" + cutNote
			if err := r.append(a); err != nil {
				return err
			}
			return r.fail(errors.New("output limit reached inside a tool call"),
				"The model ran into its output limit in the middle of its work. A smaller task may help.")
		case len(a.Calls) > 0:
			if err := r.append(a); err != nil {
				return err
			}
		case text == "":
			// Some servers answer a long history with nothing at all.
			r.waste(resp.Usage)
			if empty++; empty < maxEmpty {
				continue
			}
			return r.fail(errors.New("the model answered with nothing"), "The model gave no answer. Please try again, or put it in other words.")
		default:
			if resp.Cut {
				a.Text += "\n\n" + cutNote
			}
			return r.finish(session.End{Reason: session.EndAnswered, Text: a.Text}, a)
		}
	}
}

const (
	cutNote  = "(The answer was cut off at the model's output limit.)"
	maxEmpty = 3
)

// open reads the transcript and the workspace.
func (r *run) open() error {
	conf := r.eng.conf
	if r.req.Workspace != "" {
		root, err := os.OpenRoot(r.req.Workspace)
		if err != nil {
			return fmt.Errorf("open workspace: %w", err)
		}
		r.root, r.env = root, tool.Env{Root: root, Dir: r.req.Workspace}
	}
	var evs []session.Event
	var err error
	ctx := context.WithoutCancel(r.ctx) // a run that was stopped is still to be closed
	if r.t = r.eng.cache.take(r.req.Session); r.t != nil {
		evs, err = conf.Store.Events(ctx, r.req.Session, r.t.last, 0)
	} else {
		r.t = &transcript{ended: true}
		evs, err = conf.Store.Prompt(ctx, r.req.Session)
	}
	if err != nil {
		return fmt.Errorf("read transcript: %w", err)
	}
	for _, ev := range evs {
		r.t.apply(ev)
	}
	if r.req.Text != "" {
		return r.append(&session.User{Text: r.req.Text, Person: r.req.Person})
	}
	if r.t.last == 0 {
		return fmt.Errorf("take up run %s: %w", r.req.Run, session.ErrNotFound)
	}
	return nil
}

func (r *run) close() {
	if r.root != nil {
		r.root.Close()
	}
	if r.t.ended {
		r.eng.cache.put(r.req.Session, r.t)
	}
}

// event gives the next event of the transcript the payload.
func (r *run) event(offset int, data any) session.Event {
	return session.Event{
		Session: r.req.Session, Seq: r.t.last + 1 + int64(offset), Run: r.req.Run,
		Time: r.eng.conf.Now().UTC(), Kind: session.KindOf(data), Data: data,
	}
}

// append stores payloads as the next events. What is about to be stored has
// happened, so the run's end does not keep it from being stored.
func (r *run) append(data ...any) error {
	evs := make([]session.Event, len(data))
	for i, d := range data {
		evs[i] = r.event(i, d)
	}
	if err := r.eng.conf.Store.Append(context.WithoutCancel(r.ctx), evs...); err != nil {
		return fmt.Errorf("append to transcript: %w", err)
	}
	r.stored(evs)
	return nil
}

// stored takes in events that are now in the transcript and shows them.
func (r *run) stored(evs []session.Event) {
	for i := range evs {
		if evs[i].Kind == session.KindAssistant {
			r.wasted = message.Usage{}
		}
		r.t.apply(evs[i])
		r.emit(Event{Stored: &evs[i]})
	}
}

func (r *run) emit(ev Event) {
	if !r.left && !r.yield(ev, nil) {
		r.left = true
		r.cancel(errors.New("nobody listens to the run any more"))
	}
}

// finish stores the last events of the run.
func (r *run) finish(end session.End, before ...any) error {
	data := append(before, &end)
	evs := make([]session.Event, len(data))
	for i, d := range data {
		evs[i] = r.event(i, d)
	}
	store := r.req.Finish
	if store == nil {
		store = func(ctx context.Context, evs []session.Event) error {
			return r.eng.conf.Store.Append(ctx, evs...)
		}
	}
	if err := store(context.WithoutCancel(r.ctx), evs); err != nil {
		return fmt.Errorf("end run: %w", err)
	}
	r.stored(evs)
	return nil
}

// fail ends the run with a text for people; the cause is for operators.
func (r *run) fail(cause error, text string) error {
	r.log.ErrorContext(r.ctx, "run failed", "err", r.eng.conf.Redact(cause.Error()))
	return r.finish(session.End{
		Reason: session.EndFailed,
		Text:   fmt.Sprintf("%s (id %s)", text, ShortID(r.req.Run)),
		Error:  r.eng.conf.Redact(cause.Error()),
	})
}

// giveUp ends a run without working on it.
func (r *run) giveUp(cause error, text string) error {
	if err := r.open(); err != nil {
		return err
	}
	defer r.close()
	if r.t.ended {
		return nil
	}
	return r.fail(cause, text)
}

// interrupted closes a run that a person stopped; any other interruption leaves
// it open.
func (r *run) interrupted() error {
	cause := context.Cause(r.ctx)
	if !errors.Is(cause, ErrStopped) {
		return cause
	}
	return r.finish(session.End{Reason: session.EndStopped})
}

// broken ends a run after an error that no retry mends.
func (r *run) broken(err error) error {
	if r.ctx.Err() != nil {
		return r.interrupted()
	}
	if e, ok := errors.AsType[*provider.Error](err); ok {
		return r.fail(err, apology(e))
	}
	if _, ok := errors.AsType[*toolError](err); ok {
		return r.fail(err, "Something went wrong inside me while I was using a tool.")
	}
	return err
}

// apology tells people about a model that gives no answer.
func apology(e *provider.Error) string {
	switch {
	case e.Class == provider.ClassAuth:
		return "I cannot reach my language model: it refuses my credentials or has no credit left. An operator has to look at this."
	case e.Class == provider.ClassContext:
		return "This conversation has grown too long for my language model. Start a fresh one with /new."
	case e.Class == provider.ClassRequest:
		return "My language model refuses this request. An operator can find out why in the log."
	case e.Status == 429:
		return "My language model is too busy right now. Please try again in a few minutes."
	}
	return "I could not get an answer from my language model, even after several tries. Please try again in a few minutes."
}

// steer takes in what people added while the run was under way.
func (r *run) steer() error {
	if r.req.Steer == nil {
		return nil
	}
	evs, err := r.req.Steer(r.ctx, r.t.last+1)
	if err != nil {
		if r.ctx.Err() != nil {
			return r.interrupted()
		}
		return fmt.Errorf("take in new messages: %w", err)
	}
	r.stored(evs)
	return nil
}

// The prompt is cut when it fills this part of the model's window, down to that
// part: rarely and deep, so that the provider's cache stays good for long.
const (
	trimAbove = 0.8
	trimTo    = 0.4
)

// makeRoom drops the oldest events from the prompt before it is too long.
func (r *run) makeRoom() error {
	if float64(r.t.tokens()) < trimAbove*float64(r.eng.conf.ContextWindow) {
		return nil
	}
	_, err := r.trim(trimTo)
	return err
}

// trim cuts the prompt to a part of the window and reports whether it could.
func (r *run) trim(part float64) (bool, error) {
	from := r.t.cut(int(part * float64(r.eng.conf.ContextWindow)))
	if from == 0 || from <= r.t.seqs[0] {
		return false, nil
	}
	d := &session.Trim{From: from}
	if r.t.taskSeq < from {
		d.Task = r.t.task
	}
	return true, r.append(d)
}

// ask calls the model until it answers or trying again makes no sense.
func (r *run) ask() (*provider.Response, error) {
	conf := r.eng.conf
	start := conf.Now()
	trimmed := false
	for try := 1; ; try++ {
		resp, err := conf.Provider.Stream(r.ctx, r.prompt(), func(s string) { r.emit(Event{Delta: s}) })
		if err == nil {
			return resp, nil
		}
		if r.ctx.Err() != nil {
			return nil, err
		}
		if e, ok := errors.AsType[*provider.Error](err); ok {
			r.waste(e.Usage)
		}
		wait := time.Duration(0)
		switch provider.ClassOf(err) {
		case provider.ClassContext:
			if trimmed {
				return nil, err
			}
			trimmed = true
			ok, terr := r.trim(trimTo / 2)
			if terr != nil {
				return nil, terr
			}
			if !ok {
				return nil, err
			}
		case provider.ClassRetry:
			if try >= conf.Retry.Tries {
				return nil, err
			}
			wait = backOff(conf.Retry, try)
			if e, ok := errors.AsType[*provider.Error](err); ok {
				wait = max(wait, e.RetryAfter)
			}
			if conf.Now().Add(wait).Sub(start) > conf.Retry.Deadline {
				return nil, err
			}
		default:
			return nil, err
		}
		r.log.WarnContext(r.ctx, "model call failed", "try", try, "wait", wait, "err", conf.Redact(err.Error()))
		if err := r.append(&session.Retry{Attempt: try, Delay: wait, Error: conf.Redact(err.Error())}); err != nil {
			return nil, err
		}
		if !sleep(r.ctx, wait) {
			return nil, context.Cause(r.ctx)
		}
	}
}

// waste counts what a model call cost that gave nothing.
func (r *run) waste(u message.Usage) {
	r.wasted.Input += u.Input
	r.wasted.Output += u.Output
	r.wasted.CachedInput += u.CachedInput
	r.wasted.Reasoning += u.Reasoning
}

// prompt is the request for the next turn.
func (r *run) prompt() provider.Request {
	req := provider.Request{System: r.system(), Messages: r.t.msgs}
	if r.root != nil {
		req.Tools = r.eng.tools.specs
	}
	return req
}

// system is the same for every turn of a session.
func (r *run) system() string {
	var b bytes.Buffer
	b.WriteString(basePrompt)
	for _, part := range []string{r.eng.conf.System, r.req.About} {
		if part = strings.TrimSpace(part); part != "" {
			b.WriteString("\n\n" + part)
		}
	}
	return b.String()
}

// backOff draws the wait after a try: full jitter.
func backOff(c Retry, try int) time.Duration {
	most := c.Cap
	if try < 30 {
		most = min(most, c.Base<<(try-1))
	}
	return rand.N(most + 1)
}

// sleep waits and reports whether ctx let it.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

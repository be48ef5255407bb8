package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"trill/engine/message"
	"trill/engine/session"
	"trill/engine/tool"
)

// toolError is a fault of a tool itself, which ends the run.
type toolError struct {
	tool string
	err  error
}

func (e *toolError) Error() string { return fmt.Sprintf("tool %s: %v", e.tool, e.err) }

func (e *toolError) Unwrap() error { return e.err }

// call is a wish of the model on its way through the gates.
type call struct {
	message.Call
	entry                      // empty when there is no tool of that name
	reply  *session.ToolResult // set when it is not to run
	permit *session.Permission // set when it was not simply allowed
	start  bool                // must be recorded before it runs
}

// calls runs what the model wants, from the first call without a result on:
// adjacent read-only calls side by side, every other call alone. Results are
// stored in the order of the calls.
func (r *run) calls() error {
	batch := r.batch()
	var before []any
	for i := range batch {
		if err := r.judge(&batch[i]); err != nil {
			return err
		}
		if batch[i].permit != nil {
			before = append(before, batch[i].permit)
		}
		if batch[i].start && batch[i].reply == nil {
			before = append(before, &session.ToolStart{CallID: batch[i].ID, Tool: batch[i].spec.Name})
		}
	}
	if len(before) > 0 {
		if err := r.append(before...); err != nil {
			return err
		}
	}
	results := make([]*session.ToolResult, len(batch))
	errs := make([]error, len(batch))
	var wg sync.WaitGroup
	for i, c := range batch {
		if c.reply != nil {
			results[i] = c.reply
			continue
		}
		wg.Go(func() { results[i], errs[i] = r.execute(c) })
	}
	wg.Wait()
	var data []any
	for _, res := range results {
		if res != nil {
			data = append(data, res)
		}
	}
	if r.ctx.Err() != nil && !errors.Is(context.Cause(r.ctx), ErrStopped) {
		// The process is going down, not the run: what was cut off is settled
		// when the run is taken up again.
		return context.Cause(r.ctx)
	}
	if len(data) > 0 {
		if err := r.append(data...); err != nil {
			return err
		}
	}
	for i, res := range results {
		if res != nil {
			r.stuck.see(batch[i].Call, res)
		}
	}
	return errors.Join(errs...)
}

// batch is the next calls that may run side by side.
func (r *run) batch() []call {
	var batch []call
	for _, m := range r.t.pending {
		c := call{Call: m}
		if r.root != nil {
			c.entry = r.eng.tools.byName[m.Tool]
		}
		alone := c.tool != nil && !c.spec.ReadOnly
		if alone && len(batch) > 0 {
			break
		}
		batch = append(batch, c)
		if alone {
			break
		}
	}
	return batch
}

// judge decides whether a call runs: is it one, is it still to run, and what do
// the gates and the people say.
func (r *run) judge(c *call) error {
	refuse := func(format string, args ...any) {
		c.reply = &session.ToolResult{CallID: c.ID, Tool: c.Tool, Failed: true, Text: fmt.Sprintf(format, args...)}
	}
	if c.tool == nil {
		refuse("There is no tool named %q. The tools are: %s.", clip(c.Tool, 80), strings.Join(r.eng.tools.names(), ", "))
		return nil
	}
	if r.t.started[c.ID] {
		refuse("This call was interrupted while it ran, and nobody saw its end: it may or may not have had its effect. Find out before you repeat it.")
		return nil
	}
	args, err := c.check.Validate(c.Args)
	if err != nil {
		refuse("%v", err)
		return nil
	}
	c.Args = args
	c.start = !c.spec.ReadOnly
	tc := tool.Call{
		ID: c.ID, Spec: c.spec, Args: args,
		Person: r.req.Person, Role: r.req.Role, Channel: r.req.Channel,
	}
	v := r.gates(tc)
	switch v.Decision {
	case tool.Allow:
	case tool.Ask:
		return r.askPeople(c, tc, v)
	default:
		c.permit = &session.Permission{CallID: c.ID, Tool: c.Tool, Decision: string(tool.Deny), Reason: v.Reason}
		refuse("Not allowed: %s", v.Reason)
	}
	return nil
}

// gates returns the strictest verdict.
func (r *run) gates(tc tool.Call) tool.Verdict {
	strict := tool.Verdict{Decision: tool.Allow}
	for _, g := range r.eng.conf.Gates {
		switch v := g.Judge(r.ctx, tc); v.Decision {
		case tool.Allow:
		case tool.Ask:
			if strict.Decision == tool.Allow {
				strict = v
			}
		default: // also a word that no gate should say
			return tool.Verdict{Decision: tool.Deny, Reason: v.Reason}
		}
	}
	return strict
}

// askPeople waits for somebody's decision.
func (r *run) askPeople(c *call, tc tool.Call, v tool.Verdict) error {
	c.permit = &session.Permission{CallID: c.ID, Tool: c.Tool, Decision: string(tool.Deny), Reason: v.Reason}
	if r.req.Approve == nil {
		c.reply = &session.ToolResult{CallID: c.ID, Tool: c.Tool, Failed: true,
			Text: "Not allowed: this needs an approval, and nobody can be asked here."}
		return nil
	}
	a, err := r.req.Approve(r.ctx, Ask{Session: r.req.Session, Run: r.req.Run, Call: tc, Reason: v.Reason})
	if err != nil {
		return fmt.Errorf("ask for approval: %w", err)
	}
	c.permit.By, c.permit.Reason = a.By, a.Reason
	if a.Allowed {
		c.permit.Decision = string(tool.Allow)
		return nil
	}
	c.reply = &session.ToolResult{CallID: c.ID, Tool: c.Tool, Failed: true, Text: "Not allowed: " + a.Reason}
	return nil
}

// execute runs one call. The result is nil when the run ended before the call
// did and the call may simply run again.
func (r *run) execute(c call) (res *session.ToolResult, err error) {
	timeout := r.eng.conf.ToolTimeout
	if c.spec.Timeout > 0 {
		timeout = c.spec.Timeout
	}
	ctx, cancel := context.WithTimeout(r.ctx, timeout)
	defer cancel()
	start := r.eng.conf.Now()
	out, err := runTool(ctx, c.tool, r.env, c.Args)
	res = &session.ToolResult{CallID: c.ID, Tool: c.Tool, Took: r.eng.conf.Now().Sub(start)}
	switch {
	case r.ctx.Err() != nil:
		if c.spec.ReadOnly && err != nil {
			return nil, nil
		}
		res.Failed = true
		res.Text = strings.TrimSpace(out.Text + "\n\nStopped by a person before it was done; what it did until then stays.")
	case ctx.Err() != nil && (err != nil || out.Failed):
		res.Failed = true
		res.Text = strings.TrimSpace(fmt.Sprintf("%s\n\nStopped: it took longer than %v.", out.Text, timeout))
	case err != nil:
		return nil, &toolError{c.Tool, err}
	default:
		res.Text, res.Failed = out.Text, out.Failed
	}
	res.Text = clip(r.eng.conf.Redact(strings.ToValidUTF8(res.Text, "\uFFFD")), r.eng.conf.MaxResult)
	return res, nil
}

// runTool keeps a tool's panic from taking the process down.
func runTool(ctx context.Context, t tool.Tool, env tool.Env, args json.RawMessage) (out tool.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return t.Run(ctx, env, args)
}

// clip leaves out the middle of a text that is longer than limit bytes.
func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	head, tail := limit*2/3, len(s)-limit/3
	for head > 0 && !utf8.RuneStart(s[head]) {
		head--
	}
	for tail < len(s) && !utf8.RuneStart(s[tail]) {
		tail++
	}
	return fmt.Sprintf("%s\n[... %d bytes left out ...]\n%s", s[:head], tail-head, s[tail:])
}

// stuckGuard notices a model that repeats the same failing calls.
type stuckGuard struct {
	recent [stuckAfter]string
	n      int
}

// stuckAfter is how many equal failures in a row are too many.
const stuckAfter = 5

func (g *stuckGuard) see(c message.Call, res *session.ToolResult) {
	sign := ""
	if res.Failed {
		sign = c.Tool + "\x00" + string(c.Args) + "\x00" + res.Text
	}
	g.recent[g.n%stuckAfter] = sign
	g.n++
}

func (g *stuckGuard) over() bool {
	return g.recent[0] != "" && !slices.ContainsFunc(g.recent[1:], func(s string) bool { return s != g.recent[0] })
}

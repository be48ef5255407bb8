package pipeline

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"trill/engine"
	"trill/engine/tool"
)

// codeLetters has no letter that is easily taken for another.
const codeLetters = "ABCDEFGHJKMNPQRSTVWXYZ23456789"

// newCode returns what people type to answer a question: 30^5 of them.
func newCode() string {
	b := make([]byte, 5)
	rand.Read(b)
	for i := range b {
		b[i] = codeLetters[int(b[i])%len(codeLetters)]
	}
	return string(b)
}

// approve asks the people of a run's thread about a call and waits for the
// decision. The question is a row, so a run that is taken up again waits on for
// the same one. Meanwhile the run does not count as one that works.
func (p *Pipeline) approve(ctx context.Context, a *activeRun, ask engine.Ask) (engine.Approval, error) {
	stored, err := p.question(ctx, a, ask)
	for errors.Is(err, ErrGone) { // another question has the code
		stored, err = p.question(ctx, a, ask)
	}
	if err != nil {
		return engine.Approval{}, err
	}
	if stored.Digest != callDigest(ask.Call) {
		return engine.Approval{Reason: "the call is not the one that people were asked about"}, nil
	}
	decided := p.decision(stored.ID)
	p.out.wake(a.Target.Key)
	// It may have been decided before we listened.
	if stored, err = p.conf.Store.Approval(ctx, stored.Key, stored.Code); err != nil {
		return engine.Approval{}, err
	}

	p.leaveSlot(a)
	expiry := time.NewTimer(stored.ExpiresAt.Sub(p.conf.Now()))
	defer expiry.Stop()
	for stored.State == ApprovalOpen {
		select {
		case <-ctx.Done():
			return engine.Approval{}, context.Cause(ctx)
		case <-decided:
		case <-expiry.C:
			err := p.conf.Store.DecideApproval(ctx, Decide{ID: stored.ID, State: ApprovalExpired}, p.conf.Now().UTC())
			if err != nil && !errors.Is(err, ErrGone) {
				return engine.Approval{}, err
			}
			p.decided(stored.ID)
		}
		if stored, err = p.conf.Store.Approval(ctx, stored.Key, stored.Code); err != nil {
			return engine.Approval{}, err
		}
	}
	p.decided(stored.ID)
	if err := p.takeSlot(ctx, a); err != nil {
		return engine.Approval{}, err
	}
	answer := engine.Approval{By: stored.By, Allowed: stored.State == ApprovalAllowed}
	switch stored.State {
	case ApprovalAllowed:
		answer.Reason = "approved by " + stored.By
	case ApprovalExpired:
		answer.Reason = "nobody approved it in time"
	default:
		answer.Reason = "a person denied it"
		if stored.Note != "" {
			answer.Reason += " and said: " + stored.Note
		}
	}
	return answer, nil
}

// question stores the question about a call, unless it was asked before.
func (p *Pipeline) question(ctx context.Context, a *activeRun, ask engine.Ask) (Approval, error) {
	now := p.conf.Now().UTC()
	ap := Approval{
		Code: newCode(), Run: a.ID, CallID: ask.Call.ID, Digest: callDigest(ask.Call), Key: a.Target.Key,
		Tool: ask.Call.Spec.Name, Shown: p.conf.Redact(showCall(ask.Call)), Requester: a.Person, State: ApprovalOpen,
		CreatedAt: now, ExpiresAt: now.Add(p.conf.ApprovalTimeout),
	}
	text := p.say("approval", map[string]any{
		"Tool": ap.Tool, "Shown": ap.Shown, "Reason": ask.Reason, "Code": ap.Code,
		"Minutes": int(p.conf.ApprovalTimeout.Round(time.Minute) / time.Minute), "SelfApprove": p.conf.Access.SelfApprove,
	})
	ds := p.deliveries(KindApproval, a.Target, text, "run/"+string(a.ID)+"/"+ask.Call.ID)
	for i := range ds {
		ds[i].Run, ds[i].Inbox = a.ID, a.Inbox
	}
	return p.conf.Store.AskApproval(ctx, ap, ds)
}

// decision returns a channel that is closed when the approval is decided.
func (p *Pipeline) decision(id int64) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	ch := p.decisions[id]
	if ch == nil {
		ch = make(chan struct{})
		p.decisions[id] = ch
	}
	return ch
}

// decided tells whoever waits for the approval.
func (p *Pipeline) decided(id int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ch := p.decisions[id]; ch != nil {
		close(ch)
		delete(p.decisions, id)
	}
}

// callDigest binds an approval to a tool and its arguments.
func callDigest(c tool.Call) string {
	canonical := []byte(c.Args)
	var v any
	if json.Unmarshal(c.Args, &v) == nil {
		if sorted, err := json.Marshal(v); err == nil { // keys in order
			canonical = sorted
		}
	}
	sum := sha256.Sum256(append([]byte(c.Spec.Name+"\x00"), canonical...))
	return hex.EncodeToString(sum[:])
}

// maxShown bounds what people are shown of a call; what does not fit cannot be
// approved by somebody who has not seen it, so it says that it was cut.
const maxShown = 6000

// showCall shows exactly what would run, in a code block that the content cannot
// close.
func showCall(c tool.Call) string {
	var args map[string]any
	if err := json.Unmarshal(c.Args, &args); err != nil {
		return codeBlock(string(c.Args))
	}
	if cmd, ok := args["command"].(string); ok && len(args) == 1 {
		return codeBlock(cmd)
	}
	var b strings.Builder
	var long []string // values of several lines come last
	for _, k := range sortedKeys(args) {
		v, ok := args[k].(string)
		if !ok {
			raw, _ := json.Marshal(args[k])
			v = string(raw)
		}
		if strings.Contains(v, "\n") {
			long = append(long, k+":\n"+v)
		} else {
			fmt.Fprintf(&b, "%s: %s\n", k, v)
		}
	}
	b.WriteString(strings.Join(long, "\n"))
	return codeBlock(strings.TrimRight(b.String(), "\n"))
}

func codeBlock(s string) string {
	if len(s) > maxShown {
		s = strings.ToValidUTF8(s[:maxShown], "") + fmt.Sprintf("\n[... cut: %d more bytes ...]", len(s)-maxShown)
	}
	fence := "```"
	for strings.Contains(s, fence) {
		fence += "`"
	}
	return fence + "\n" + visible(s) + "\n" + fence
}

// visible replaces characters that could make a call look like another: controls,
// and marks that reorder or hide text.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return r
		case r < 0x20, r == 0x7f, r >= 0x80 && r < 0xa0, r >= 0x200b && r <= 0x200f, r >= 0x202a && r <= 0x202e,
			r >= 0x2060 && r <= 0x206f, r == 0xfeff, r >= 0xe0000 && r <= 0xe007f:
			return '\uFFFD'
		}
		return r
	}, s)
}

// mayDecide returns why a person may not answer a question, or "".
func (p *Pipeline) mayDecide(ap Approval, person string, role Role, allow bool) string {
	switch {
	case !allow && person == ap.Requester:
		return "" // who asked may always take it back
	case !role.AtLeast(RoleOperator):
		return p.say("not-approver", nil)
	case allow && person == ap.Requester && !p.conf.Access.SelfApprove:
		return p.say("not-self", nil)
	}
	return ""
}

// decide is the command /approve or /deny.
func (p *Pipeline) decide(ctx context.Context, x *exchange, allow bool) error {
	code, note, _ := strings.Cut(strings.TrimSpace(x.args), " ")
	code = strings.ToUpper(strings.Trim(code, "`.,"))
	if code == "" {
		open, err := p.conf.Store.OpenApprovals(ctx, x.row.Message.Key())
		if err != nil {
			return err
		}
		codes := make([]string, len(open))
		for i, ap := range open {
			codes[i] = fmt.Sprintf("`%s` (%s)", ap.Code, ap.Tool)
		}
		return x.answer(ctx, p.say("code-missing", strings.Join(codes, ", ")))
	}
	ap, err := p.conf.Store.Approval(ctx, x.row.Message.Key(), code)
	switch {
	case errors.Is(err, ErrNotFound):
		return x.answer(ctx, p.say("code-unknown", code))
	case err != nil:
		return err
	case ap.State != ApprovalOpen || !ap.ExpiresAt.After(p.conf.Now()):
		return x.answer(ctx, p.say("code-settled", ap))
	}
	if why := p.mayDecide(ap, x.person, x.role, allow); why != "" {
		return x.settle(ctx, Settle{
			Deliveries: p.reply(x.row, why),
			Audit: &AuditEntry{
				At: p.conf.Now().UTC(), Class: "approval_refused", Key: ap.Key.Channel, Room: ap.Key.Room,
				Person: x.person, Detail: fmt.Sprintf("%s of run %s", ap.Tool, ap.Run),
			},
		})
	}
	d := Decide{ID: ap.ID, State: ApprovalDenied, By: x.person, Note: strings.TrimSpace(note)}
	if allow {
		d.State = ApprovalAllowed
	}
	err = x.settle(ctx, Settle{
		Decide:     &d,
		Deliveries: p.reply(x.row, p.say("decided", map[string]any{"Allowed": allow, "Tool": ap.Tool})),
		Audit: &AuditEntry{
			At: p.conf.Now().UTC(), Class: "approval_" + string(d.State), Key: ap.Key.Channel, Room: ap.Key.Room,
			Person: x.person, Detail: fmt.Sprintf("%s of run %s: %s", ap.Tool, ap.Run, ap.Shown),
		},
	})
	if errors.Is(err, ErrGone) { // somebody else was first, or this very row was settled
		if ap, err = p.conf.Store.Approval(ctx, x.row.Message.Key(), code); err != nil {
			return err
		}
		err = x.answer(ctx, p.say("code-settled", ap))
	}
	p.decided(ap.ID)
	return err
}

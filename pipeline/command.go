package pipeline

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"trill/engine"
	"trill/engine/session"
)

// command is something people can tell the bot without the model.
type command struct {
	name string
	args string // as shown by /help
	help string
	role Role // the least access it takes
	run  func(p *Pipeline, ctx context.Context, x *exchange) error
}

// commands is the one table of them.
func commands() []command {
	return []command{
		{"help", "", "what I understand", RoleGuest, (*Pipeline).help},
		{"status", "", "what I am doing in this thread", RoleGuest, (*Pipeline).status},
		{"usage", "", "what this session has cost so far", RoleGuest, (*Pipeline).usage},
		{"stop", "", "stop what I am doing here", RoleGuest, (*Pipeline).stop},
		{"approve", "CODE", "let a call run that I asked about", RoleGuest, func(p *Pipeline, ctx context.Context, x *exchange) error {
			return p.decide(ctx, x, true)
		}},
		{"deny", "CODE [why]", "do not let it run", RoleGuest, func(p *Pipeline, ctx context.Context, x *exchange) error {
			return p.decide(ctx, x, false)
		}},
		{"new", "", "begin a fresh session in this thread", RoleMember, (*Pipeline).fresh},
		{"sessions", "", "the sessions of this room", RoleMember, (*Pipeline).sessions},
		{"switch-project", "[NAME]", "work on another project", RoleMember, (*Pipeline).switchProject},
	}
}

// exchange is one command being answered.
type exchange struct {
	p      *Pipeline
	w      *worker
	args   string
	row    InboxRow
	person string
	role   Role
}

// parseCommand splits "/name args". A bare "stop" or a stop sign is a command as
// well. The name is empty for anything else.
func parseCommand(text string) (name, args string) {
	switch strings.ToLower(strings.TrimRight(text, ".! \uFE0F")) {
	case "stop", "🛑":
		return "stop", ""
	}
	line, _, _ := strings.Cut(text, "\n")
	rest, ok := strings.CutPrefix(line, "/")
	if !ok {
		return "", ""
	}
	name, args, _ = strings.Cut(rest, " ")
	return strings.ToLower(name), strings.TrimSpace(args)
}

// command finds the command that a text is; any other text is for the model.
func (p *Pipeline) command(text string) (command, string, bool) {
	name, args := parseCommand(text)
	for _, c := range p.commands {
		if c.name == name {
			return c, args, true
		}
	}
	return command{}, "", false
}

func (p *Pipeline) runCommand(ctx context.Context, w *worker, c command, args string, row InboxRow, person string, role Role) error {
	x := &exchange{p: p, w: w, args: args, row: row, person: person, role: role}
	if !role.AtLeast(c.role) {
		return x.answer(ctx, p.say("no-right", c.name))
	}
	return gone(c.run(p, ctx, x))
}

// answer ends the exchange with a text.
func (x *exchange) answer(ctx context.Context, text string) error {
	return x.settle(ctx, Settle{Deliveries: x.p.reply(x.row, text)})
}

// settle ends the exchange with what it changes.
func (x *exchange) settle(ctx context.Context, s Settle) error {
	s.Row, s.State, s.At = x.row.ID, Done, x.p.conf.Now().UTC()
	s.Reason = "command"
	if err := x.p.conf.Store.Settle(ctx, s); err != nil {
		return err
	}
	x.p.out.wake(x.w.key)
	return nil
}

func (p *Pipeline) help(ctx context.Context, x *exchange) error {
	type line struct{ Name, Args, Help string }
	var lines []line
	for _, c := range p.commands {
		if x.role.AtLeast(c.role) {
			lines = append(lines, line{c.name, c.args, c.help})
		}
	}
	return x.answer(ctx, p.say("help", map[string]any{"Name": p.conf.Name, "Trigger": p.conf.Trigger, "Commands": lines}))
}

func (p *Pipeline) status(ctx context.Context, x *exchange) error {
	th, err := p.conf.Store.Thread(ctx, x.w.key)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	open, err := p.conf.Store.OpenApprovals(ctx, x.w.key)
	if err != nil {
		return err
	}
	x.w.mu.Lock()
	run, waiting := x.w.run, len(x.w.waiting)
	x.w.mu.Unlock()
	data := map[string]any{"Project": th.Project, "Approvals": open, "Waiting": waiting, "For": ""}
	if run != nil && run.ctx.Err() == nil {
		data["For"] = max(p.conf.Now().Sub(run.StartedAt), 0).Round(time.Second).String()
		data["ID"] = engine.ShortID(run.ID)
	}
	return x.answer(ctx, p.say("status", data))
}

func (p *Pipeline) usage(ctx context.Context, x *exchange) error {
	var info SessionInfo
	th, err := p.conf.Store.Thread(ctx, x.w.key)
	if err == nil {
		info, err = p.conf.Store.Session(ctx, th.Session)
	}
	if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, session.ErrNotFound) {
		return err
	}
	return x.answer(ctx, p.say("usage", info))
}

func (p *Pipeline) stop(ctx context.Context, x *exchange) error {
	x.w.mu.Lock()
	run := x.w.run
	x.w.mu.Unlock()
	if run == nil || run.ctx.Err() != nil {
		return x.answer(ctx, p.say("nothing-to-stop", nil))
	}
	if err := x.w.drop(ctx, run.Person); err != nil {
		return err
	}
	err := x.settle(ctx, Settle{
		Stop: "stopped by " + x.person, StopKey: x.w.key, Deliveries: p.reply(x.row, p.say("stopped", nil)),
	})
	if err != nil {
		return err
	}
	run.cancel(engine.ErrStopped)
	return nil
}

func (p *Pipeline) fresh(ctx context.Context, x *exchange) error {
	th, err := p.conf.Store.Thread(ctx, x.w.key)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	return x.move(ctx, Thread{Key: x.w.key, Session: engine.NewSessionID(), Project: th.Project}, p.say("fresh", th.Project))
}

// move points the thread to another session or project; the run that is under
// way ends, as its answer is no longer wanted.
func (x *exchange) move(ctx context.Context, th Thread, text string) error {
	x.w.mu.Lock()
	run := x.w.run
	x.w.mu.Unlock()
	s := Settle{Thread: &th, Deliveries: x.p.reply(x.row, text)}
	if run != nil {
		s.Stop, s.StopKey = "thread was moved on by "+x.person, x.w.key
	}
	if err := x.settle(ctx, s); err != nil {
		return err
	}
	if run != nil {
		run.cancel(engine.ErrStopped)
	}
	return nil
}

func (p *Pipeline) sessions(ctx context.Context, x *exchange) error {
	list, err := p.conf.Store.Sessions(ctx, &x.w.key, 10, 0)
	if err != nil {
		return err
	}
	th, err := p.conf.Store.Thread(ctx, x.w.key)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	return x.answer(ctx, p.say("sessions", map[string]any{"Sessions": list, "Current": th.Session}))
}

func (p *Pipeline) switchProject(ctx context.Context, x *exchange) error {
	name := strings.Trim(x.args, "`")
	if _, ok := p.conf.Projects[name]; !ok {
		return x.answer(ctx, p.say("projects", map[string]any{"Asked": name, "List": p.projectNames()}))
	}
	th, err := p.conf.Store.Thread(ctx, x.w.key)
	switch {
	case errors.Is(err, ErrNotFound):
		th = Thread{Key: x.w.key, Session: engine.NewSessionID()}
	case err != nil:
		return err
	}
	th.Project = name
	return x.settle(ctx, Settle{
		Thread: &th, Deliveries: p.reply(x.row, p.say("switched", name)),
	})
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	return slices.Sorted(maps.Keys(m))
}

package main

import (
	"fmt"
	"strings"
	"time"

	"trill/adapters"
	"trill/engine"
	"trill/pipeline"
	"trill/storage"
)

type traceCmd struct {
	ID   string `arg:"" name:"message-id" help:"A message's id, as in the log, or the end of it; or the id in an apology of the bot."`
	JSON bool   `name:"json" help:"Print JSON."`
}

func (c *traceCmd) Run(e *env) error {
	return e.read(func(_ *Config, db *storage.DB) error {
		traces, err := db.Trace(e.ctx, adapters.MessageID(c.ID))
		if err != nil {
			return err
		}
		if len(traces) == 0 {
			return fmt.Errorf("no message %q was received", c.ID)
		}
		if c.JSON {
			return printJSON(e.out, traces)
		}
		for _, tr := range traces {
			printTrace(e, tr)
		}
		return nil
	})
}

func printTrace(e *env, tr pipeline.Trace) {
	m := &tr.Row.Message
	step := func(at time.Time, what, format string, args ...any) {
		when := strings.Repeat(" ", 19)
		if !at.IsZero() {
			when = at.Local().Format(time.DateTime)
		}
		fmt.Fprintf(e.out, "%s  %-9s %s\n", when, what, printable(fmt.Sprintf(format, args...)))
	}
	step(tr.Row.ReceivedAt, "received", "%s from %s in %s/%s", m.ID, pipeline.PersonKey(m.Channel, m.Sender.ID), m.Channel, m.Room)
	step(tr.Row.ReceivedAt, "stored", "as inbox row %d", tr.Row.ID)
	decided := string(tr.Row.State)
	if tr.Row.Reason != "" {
		decided += ": " + tr.Row.Reason
	}
	step(time.Time{}, "decided", "%s", decided)
	if r := tr.Run; r != nil {
		step(r.StartedAt, "ran", "%s in session %s, for %s (%s)", engine.ShortID(r.ID), r.Session, r.Person, r.Role)
		if r.EndedAt.IsZero() {
			step(time.Time{}, "ends", "it is still under way")
		} else {
			step(r.EndedAt, "ended", "%s after %v", r.Reason, r.EndedAt.Sub(r.StartedAt).Round(time.Millisecond))
		}
	}
	for _, d := range tr.Deliveries {
		detail := fmt.Sprintf("%s part %d, %s, tries: %d", d.Kind, d.Part, d.State, d.Attempts)
		if d.Error != "" {
			detail += ": " + d.Error
		}
		if d.RemoteID != "" {
			detail += ", as " + string(d.RemoteID)
		}
		step(d.SentAt, "delivery", "%d %s", d.ID, detail)
	}
}

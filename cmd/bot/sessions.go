package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"trill/engine/session"
	"trill/pipeline"
	"trill/storage"
)

type sessionsCmd struct {
	List   sessionsListCmd   `cmd:"" help:"List sessions, the newest first."`
	Show   sessionsShowCmd   `cmd:"" help:"Print a session's transcript."`
	Export sessionsExportCmd `cmd:"" help:"Write a session's transcript as JSON lines or Markdown."`
}

type sessionsListCmd struct {
	Limit  int  `default:"20" help:"How many."`
	Offset int  `help:"How many of the newest to skip."`
	JSON   bool `name:"json" help:"Print JSON."`
}

func (c *sessionsListCmd) Run(e *env) error {
	return e.read(func(_ *Config, db *storage.DB) error {
		list, err := db.Sessions(e.ctx, nil, c.Limit, c.Offset)
		if err != nil {
			return err
		}
		if c.JSON {
			return printJSON(e.out, list)
		}
		if len(list) == 0 {
			fmt.Fprintln(e.out, "There are no sessions yet.")
			return nil
		}
		t := newTable(e.out, "SESSION", "ROOM", "UPDATED", "EVENTS", "TOKENS", "STATE", "TITLE")
		for _, s := range list {
			state := "idle"
			if s.Running {
				state = "running"
			}
			t.row(string(s.ID), fmt.Sprintf("%s/%s", s.Key.Channel, s.Key.Room), age(time.Since(s.UpdatedAt)),
				fmt.Sprint(s.Events), fmt.Sprint(s.Usage.Input+s.Usage.Output), state, s.Title)
		}
		return t.flush()
	})
}

type sessionsShowCmd struct {
	ID   string `arg:"" help:"Session id, or the end of it."`
	JSON bool   `name:"json" help:"Print JSON."`
}

func (c *sessionsShowCmd) Run(e *env) error {
	return e.read(func(_ *Config, db *storage.DB) error {
		info, evs, err := transcript(e, db, c.ID)
		if err != nil {
			return err
		}
		if c.JSON {
			return printJSON(e.out, map[string]any{"session": info, "events": evs})
		}
		return writeMarkdown(e.out, info, evs)
	})
}

type sessionsExportCmd struct {
	ID     string `arg:"" help:"Session id, or the end of it."`
	Format string `enum:"jsonl,markdown" default:"jsonl" help:"jsonl or markdown."`
	Output string `short:"o" placeholder:"FILE" help:"Where to write; standard output when not given. An existing file is not overwritten."`
}

func (c *sessionsExportCmd) Run(e *env) error {
	return e.read(func(_ *Config, db *storage.DB) (err error) {
		info, evs, err := transcript(e, db, c.ID)
		if err != nil {
			return err
		}
		out := e.out
		if c.Output != "" {
			f, err := os.OpenFile(c.Output, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, f.Close()) }()
			out = f
		}
		if c.Format == "markdown" {
			return writeMarkdown(out, info, evs)
		}
		enc := json.NewEncoder(out)
		for _, ev := range evs {
			if err := enc.Encode(ev); err != nil {
				return err
			}
		}
		return nil
	})
}

// transcript finds a session by its id or the end of it.
func transcript(e *env, db *storage.DB, id string) (pipeline.SessionInfo, []session.Event, error) {
	info, err := db.Session(e.ctx, session.ID(id))
	for offset := 0; errors.Is(err, session.ErrNotFound) && len(id) >= 4; offset += 500 {
		list, lerr := db.Sessions(e.ctx, nil, 500, offset)
		if lerr != nil {
			return info, nil, lerr
		}
		for _, s := range list {
			if strings.HasSuffix(string(s.ID), strings.ToUpper(id)) {
				info, err = s, nil
			}
		}
		if len(list) < 500 {
			break
		}
	}
	if errors.Is(err, session.ErrNotFound) {
		return info, nil, fmt.Errorf("no session %q; bot sessions list shows them", id)
	}
	if err != nil {
		return info, nil, err
	}
	evs, err := db.Events(e.ctx, info.ID, 0, 0)
	return info, evs, err
}

// writeMarkdown prints a transcript for reading.
func writeMarkdown(w io.Writer, info pipeline.SessionInfo, evs []session.Event) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s · %s/%s · %s\n", info.Title, info.ID, info.Key.Channel, info.Key.Room, info.CreatedAt.UTC().Format(time.DateTime))
	for _, ev := range evs {
		at := ev.Time.UTC().Format("15:04:05")
		switch d := ev.Data.(type) {
		case *session.User:
			fmt.Fprintf(&b, "\n## %s %s (%s)\n\n%s\n", at, d.Name, d.Person, d.Text)
			for _, line := range d.Attachments {
				fmt.Fprintf(&b, "\n[attachment: %s]\n", line)
			}
			if d.Quoted != "" {
				fmt.Fprintf(&b, "\n> %s\n", strings.ReplaceAll(d.Quoted, "\n", "\n> "))
			}
		case *session.Assistant:
			fmt.Fprintf(&b, "\n## %s the bot (%s, %d in, %d out)\n", at, d.Model, d.Usage.Input, d.Usage.Output)
			if d.Text != "" {
				fmt.Fprintf(&b, "\n%s\n", d.Text)
			}
			for _, call := range d.Calls {
				fmt.Fprintf(&b, "\n- calls `%s` %s\n", call.Tool, call.Args)
			}
		case *session.ToolResult:
			word := "gave"
			if d.Failed {
				word = "failed"
			}
			fmt.Fprintf(&b, "\n%s `%s` %s:\n\n    %s\n", at, d.Tool, word, strings.ReplaceAll(d.Text, "\n", "\n    "))
		case *session.Permission:
			fmt.Fprintf(&b, "\n%s `%s`: %s (%s)\n", at, d.Tool, d.Decision, d.Reason)
		case *session.Retry:
			fmt.Fprintf(&b, "\n%s the model failed, try %d: %s\n", at, d.Attempt, d.Error)
		case *session.Trim:
			fmt.Fprintf(&b, "\n%s what is above event %d is no longer shown to the model\n", at, d.From)
		case *session.End:
			fmt.Fprintf(&b, "\n%s run %s: %s", at, ev.Run, d.Reason)
			if d.Error != "" {
				fmt.Fprintf(&b, " (%s)", d.Error)
			}
			b.WriteString("\n")
		}
	}
	text := b.String()
	if isTerminal(w) {
		lines := strings.Split(text, "\n")
		for i, line := range lines {
			lines[i] = printable(line)
		}
		text = strings.Join(lines, "\n")
	}
	_, err := io.WriteString(w, text)
	return err
}

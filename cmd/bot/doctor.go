package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"trill/adapters"
	"trill/engine/sandbox"
	"trill/pipeline"
	"trill/storage"
)

type doctorCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// checkTimeout bounds one look at something outside of the process.
const checkTimeout = 20 * time.Second

// section is what the doctor found about one thing.
type section struct {
	Name     string             `json:"name"`
	Findings []adapters.Finding `json:"findings"`
}

func (c *doctorCmd) Run(e *env) error {
	cfg, err := e.load()
	if err != nil {
		return err
	}
	stop := newSpinner(e.err, "looking")
	sections := examine(e.ctx, cfg, e.helper)
	stop()
	bad := 0
	for _, s := range sections {
		for _, f := range s.Findings {
			if !f.OK {
				bad++
			}
		}
	}
	if c.JSON {
		if err := printJSON(e.out, map[string]any{"ok": bad == 0, "sections": sections}); err != nil {
			return err
		}
	} else {
		paint := newPalette(e.out)
		for _, s := range sections {
			fmt.Fprintln(e.out, paint.paint(bold, s.Name))
			for _, f := range s.Findings {
				mark := paint.paint(green, "ok ")
				if !f.OK {
					mark = paint.paint(red, "BAD")
				}
				fmt.Fprintf(e.out, "  %s  %s", mark, printable(f.What))
				if f.Detail != "" {
					fmt.Fprintf(e.out, ": %s", printable(f.Detail))
				}
				fmt.Fprintln(e.out)
				if f.Advice != "" {
					fmt.Fprintf(e.out, "       -> %s\n", printable(f.Advice))
				}
			}
		}
		switch bad {
		case 0:
			fmt.Fprintln(e.out, "\nEverything is fine.")
		case 1:
			fmt.Fprintln(e.out, "\nOne thing needs attention.")
		default:
			fmt.Fprintf(e.out, "\n%d things need attention.\n", bad)
		}
	}
	if bad > 0 {
		return errSilent
	}
	return nil
}

// examine looks at everything the service needs.
func examine(ctx context.Context, cfg *Config, helper sandbox.Helper) []section {
	sections := []section{
		{"Configuration", examineConfig(cfg)},
		{"Data folder " + cfg.Bot.DataDir, examineData(ctx, cfg)},
		{"Tools", examineTools(cfg, helper)},
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Models)) {
		sections = append(sections, section{"Model " + name, examineModel(ctx, cfg.Models[name])})
	}
	channels, err := openChannels(cfg, discardLog())
	if err != nil {
		return append(sections, section{"Channels", []adapters.Finding{{What: "configuration", Detail: err.Error()}}})
	}
	for _, name := range slices.Sorted(maps.Keys(channels)) {
		ch := channels[name]
		s := section{Name: fmt.Sprintf("Channel %s (%s)", name, ch.Adapter.Platform())}
		if c, ok := ch.Adapter.(adapters.Checker); ok {
			cctx, cancel := context.WithTimeout(ctx, checkTimeout)
			s.Findings = c.Check(cctx)
			cancel()
		}
		if _, ok := ch.Adapter.(adapters.WebhookReceiver); ok {
			s.Findings = append(s.Findings, adapters.Finding{OK: true, What: "webhook", Detail: "this service answers at " + cfg.Server.PublicURL + "/api/webhooks/" + string(name)})
		}
		sections = append(sections, s)
	}
	return sections
}

func examineConfig(cfg *Config) []adapters.Finding {
	fs := []adapters.Finding{{OK: true, What: "file", Detail: cfg.File}}
	for _, w := range cfg.Warnings {
		fs = append(fs, adapters.Finding{OK: true, What: "note", Detail: w.String()})
	}
	if len(cfg.Channels) == 0 {
		fs = append(fs, adapters.Finding{What: "channels", Detail: "none is configured", Advice: "add a [channels.NAME] table, as in config.example.toml"})
	}
	admin := slices.ContainsFunc(cfg.Access.Grant, func(g Grant) bool { return g.Role.AtLeast(pipeline.RoleOperator) })
	if !admin && cfg.Engine.Permissions.Mode == "ask" {
		fs = append(fs, adapters.Finding{What: "approvals", Detail: "nobody may approve anything", Advice: "give somebody the role operator in an [[access.grant]]"})
	}
	return fs
}

func examineData(ctx context.Context, cfg *Config) []adapters.Finding {
	if _, err := os.Stat(filepath.Join(cfg.Bot.DataDir, "trill.db")); errors.Is(err, os.ErrNotExist) {
		if err := writable(cfg.Bot.DataDir); err != nil {
			return []adapters.Finding{{What: "database", Detail: err.Error(), Advice: "make the folder writable for the user that runs the service"}}
		}
		return []adapters.Finding{{OK: true, What: "database", Detail: "none yet; the first start makes it"}}
	}
	db, err := storage.Open(ctx, storage.Config{Dir: cfg.Bot.DataDir, ReadOnly: true}, discardLog())
	if err != nil {
		return []adapters.Finding{{What: "database", Detail: err.Error()}}
	}
	defer db.Close()
	var fs []adapters.Finding
	finding := func(what string, err error, fine, advice string) {
		f := adapters.Finding{OK: err == nil, What: what, Detail: fine}
		if err != nil {
			f.Detail, f.Advice = err.Error(), advice
		}
		fs = append(fs, f)
	}
	finding("file", db.Integrity(ctx), "undamaged", "stop the service and restore a backup")
	broken, err := db.Invariants(ctx)
	if err == nil && len(broken) > 0 {
		err = errors.New(broken[0])
		if len(broken) > 1 {
			err = fmt.Errorf("%w, and %d more", err, len(broken)-1)
		}
	}
	finding("records", err, "consistent", "please report this with the output of bot trace")
	depth, err := db.Depth(ctx)
	finding("queues", err, fmt.Sprintf("%d messages open, %d runs, %d questions", depth.Inbox, depth.Runs, depth.Approvals), "")
	if n := depth.Outbox[pipeline.Held]; n > 0 {
		fs = append(fs, adapters.Finding{What: "outbox", Detail: fmt.Sprintf("%d messages are held", n), Advice: "bot outbox list -state held, then bot outbox retry ID"})
	}
	blocks, err := db.Blocks(ctx)
	for _, b := range blocks {
		where := string(b.Channel)
		if b.Room != "" {
			where += "/" + string(b.Room)
		}
		fs = append(fs, adapters.Finding{What: "blocked", Detail: where + ": " + b.Reason, Advice: "enable the bot there again; see the operations page"})
	}
	if err != nil {
		finding("blocks", err, "", "")
	}
	return fs
}

// writable reports why a file cannot be made in a folder, or in the nearest
// folder above that exists.
func writable(dir string) error {
	for {
		f, err := os.CreateTemp(dir, ".doctor-*")
		if err == nil {
			f.Close()
			return os.Remove(f.Name())
		}
		parent := filepath.Dir(dir)
		if !errors.Is(err, os.ErrNotExist) || parent == dir {
			return err
		}
		dir = parent
	}
}

func examineTools(cfg *Config, helper sandbox.Helper) []adapters.Finding {
	if cfg.Engine.Sandbox.Mode == string(sandbox.Off) {
		return []adapters.Finding{{
			OK: true, What: "sandbox for commands", Detail: "switched off",
			Advice: "commands can reach whatever the service can; set engine.sandbox.mode to auto or required",
		}}
	}
	status := sandbox.Probe(helper)
	fs := []adapters.Finding{{OK: true, What: "sandbox for commands", Detail: status.String()}}
	for _, l := range status.Lacks() {
		fs = append(fs, adapters.Finding{OK: cfg.Engine.Sandbox.Mode == string(sandbox.Auto), What: "sandbox", Detail: "missing: " + l.What, Advice: l.Advice})
	}
	return fs
}

// lister is a provider that can say which models there are.
type lister interface {
	Models(ctx context.Context) ([]string, error)
}

func examineModel(ctx context.Context, conf Model) []adapters.Finding {
	p, err := newProvider(conf)
	if err != nil {
		return []adapters.Finding{{What: "configuration", Detail: err.Error()}}
	}
	l, ok := p.(lister)
	if !ok {
		return []adapters.Finding{{OK: true, What: "provider", Detail: conf.Provider}}
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	models, err := l.Models(ctx)
	switch {
	case err != nil:
		return []adapters.Finding{{What: "endpoint", Detail: err.Error(), Advice: "check base_url and api_key"}}
	case len(models) > 0 && !slices.Contains(models, conf.Model):
		return []adapters.Finding{{What: "model", Detail: fmt.Sprintf("the server has no %q", conf.Model), Advice: fmt.Sprintf("it has %q and %d more", models[0], len(models)-1)}}
	}
	return []adapters.Finding{{OK: true, What: "endpoint", Detail: "answers, and has " + conf.Model}}
}

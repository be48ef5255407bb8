package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lmittmann/tint"

	"trill/adapters"
	"trill/adapters/nextcloudtalk"
	"trill/engine"
	"trill/engine/permission"
	"trill/engine/provider"
	"trill/engine/provider/offline"
	"trill/engine/provider/openai"
	"trill/engine/sandbox"
	"trill/engine/session"
	"trill/engine/tool"
	"trill/pipeline"
	"trill/storage"
	"trill/templates"
)

// platforms are the platforms this program speaks, each with an empty
// configuration of its channels.
func platforms() map[string]func() any {
	return map[string]func() any{
		string(nextcloudtalk.Platform): func() any { return new(nextcloudtalk.Config) },
	}
}

// newAdapter makes the adapter of a configured channel.
func newAdapter(name adapters.Channel, conf any, log *slog.Logger) (adapters.ChannelAdapter, error) {
	switch conf := conf.(type) {
	case *nextcloudtalk.Config:
		return nextcloudtalk.New(name, *conf, newClient(), log)
	}
	return nil, fmt.Errorf("channels.%s: no adapter for %T", name, conf)
}

// newClient is what adapters call their platforms with. Each bounds its own
// requests.
func newClient() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 32
	return &http.Client{Transport: t}
}

// app is the service, wired.
type app struct {
	cfg      *Config
	log      *slog.Logger
	db       *storage.DB
	channels map[adapters.Channel]pipeline.Channel
	pipeline *pipeline.Pipeline
	metrics  *metrics
	token    string
}

// store is everything the service keeps.
type store interface {
	pipeline.Store
	session.Store
}

// newApp opens the database and wires the service; nothing runs yet. The log
// goes to w. The store that everything uses is what tap makes of the database;
// tests put themselves between.
func newApp(ctx context.Context, cfg *Config, helper sandbox.Helper, w io.Writer, tap func(store) store) (_ *app, err error) {
	if err := os.MkdirAll(cfg.Bot.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("bot.data_dir: %w", err)
	}
	token, err := apiToken(cfg)
	if err != nil {
		return nil, err
	}
	redact := newRedactor(append(Secrets(cfg), token))
	log := newLog(cfg.Log, w, redact)
	for _, warning := range cfg.Warnings {
		log.Warn("configuration", "note", warning.String())
	}
	a := &app{cfg: cfg, log: log, token: token}
	if a.channels, err = openChannels(cfg, log); err != nil {
		return nil, err
	}
	a.db, err = storage.Open(ctx, storage.Config{Dir: cfg.Bot.DataDir, Ballast: storage.DefaultBallast}, log)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			a.db.Close()
		}
	}()
	a.metrics = newMetrics(a.db.Depth, log)
	kept := tap(a.db)
	eng, err := newEngine(cfg, kept, helper, redact, log)
	if err != nil {
		return nil, err
	}
	texts, err := templates.Chat()
	if err != nil {
		return nil, err
	}
	a.pipeline, err = pipeline.New(pipeline.Config{
		Store: kept, Engine: eng, Channels: a.channels,
		Access:   cfg.Access.Access(),
		Limits:   pipeline.Limits{PersonPerHour: cfg.Limits.PersonPerHour, RoomPerHour: cfg.Limits.RoomPerHour, TotalPerHour: cfg.Limits.TotalPerHour},
		Projects: projectsOf(cfg),
		Workspace: func(id session.ID) (string, error) {
			dir := filepath.Join(cfg.Engine.Workspace, string(id))
			return dir, os.MkdirAll(dir, 0o700)
		},
		Texts: texts, Name: cfg.Bot.Name, Trigger: cfg.Bot.Trigger, FollowThreads: cfg.Bot.FollowThreads,
		MaxRuns: cfg.Limits.MaxRuns, Ack: cfg.Chat.Ack, AckAfter: cfg.Chat.AckAfter.Duration(), StatusAfter: cfg.Chat.StatusAfter.Duration(),
		ApprovalTimeout: cfg.Engine.Permissions.ApprovalTimeout.Duration(), Grace: cfg.Server.ShutdownGrace.Duration(),
		Redact: redact, Observer: a.metrics, Log: log,
	})
	return a, err
}

func (a *app) close() error { return a.db.Close() }

// openChannels makes the adapters of all configured channels.
func openChannels(cfg *Config, log *slog.Logger) (map[adapters.Channel]pipeline.Channel, error) {
	channels := map[adapters.Channel]pipeline.Channel{}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(cfg.Channels)) {
		c := cfg.Channels[name]
		ad, err := newAdapter(adapters.Channel(name), c.Settings, log)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		channels[adapters.Channel(name)] = pipeline.Channel{Adapter: ad, HoldAmbiguous: c.Ambiguous == "hold", ByReply: c.Sessions == "reply"}
	}
	return channels, errors.Join(errs...)
}

func newEngine(cfg *Config, store session.Store, helper sandbox.Helper, redact func(string) string, log *slog.Logger) (*engine.Engine, error) {
	model := cfg.Models[cfg.Engine.Model]
	p, err := newProvider(model)
	if err != nil {
		return nil, fmt.Errorf("models.%s: %w", cfg.Engine.Model, err)
	}
	policy, err := permission.New(permissionsOf(cfg))
	if err != nil {
		return nil, fmt.Errorf("engine.permissions: %w", err)
	}
	box, err := sandbox.New(helper, sandboxOf(cfg))
	if err != nil {
		return nil, fmt.Errorf("engine.sandbox.%w", err)
	}
	return engine.New(engine.Config{
		Provider: p, Store: store,
		Tools: tool.Builtin(tool.ShellConfig{Sandbox: box, Network: cfg.Engine.Sandbox.Network, Timeout: cfg.Engine.ToolTimeout.Duration()}),
		Gates: []tool.Gate{policy}, System: cfg.Engine.Instructions, ContextWindow: model.ContextWindow,
		ToolTimeout: cfg.Engine.ToolTimeout.Duration(), Redact: redact, Log: log,
	})
}

// sandboxOf hides from commands what is the service's own.
func sandboxOf(cfg *Config) sandbox.Config {
	conf := sandbox.Config{Mode: sandbox.Mode(cfg.Engine.Sandbox.Mode), Hidden: []string{cfg.Bot.DataDir}}
	if file, err := filepath.Abs(cfg.File); err == nil {
		conf.Hidden = append(conf.Hidden, file)
	}
	return conf
}

func newProvider(m Model) (provider.Provider, error) {
	switch m.Provider {
	case "openai":
		return openai.New(openai.Config{
			BaseURL: m.BaseURL, Key: m.APIKey.Reveal(), Model: m.Model, ContextWindow: m.ContextWindow, MaxOutput: m.MaxOutput,
		})
	case "offline":
		return offline.New(offline.Config{})
	}
	return nil, fmt.Errorf("provider: %q is not one of openai, offline", m.Provider)
}

func projectsOf(cfg *Config) map[string]pipeline.Project {
	projects := map[string]pipeline.Project{}
	for name, p := range cfg.Projects {
		projects[name] = pipeline.Project{Path: p.Path, Description: p.Description}
	}
	return projects
}

func permissionsOf(cfg *Config) permission.Config {
	conf := permission.Config{Mode: cfg.Engine.Permissions.Mode}
	for _, r := range cfg.Engine.Permissions.Rule {
		conf.Rules = append(conf.Rules, permission.Rule{
			Tool: r.Tool, When: r.When, Operation: r.Operation, Person: r.Person, Role: string(r.Role), Channel: r.Channel,
			Decision: tool.Decision(r.Decision),
		})
	}
	return conf
}

// apiToken is the configured token, or the one that is kept in the data folder
// and made at the first start.
func apiToken(cfg *Config) (string, error) {
	if t := cfg.Server.Token.Reveal(); t != "" {
		return t, nil
	}
	path := filepath.Join(cfg.Bot.DataDir, "token")
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		token := rand.Text() + rand.Text()
		if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
			return "", fmt.Errorf("keep the API token: %w", err)
		}
		return token, nil
	}
	if err != nil {
		return "", fmt.Errorf("read the API token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if len(token) < 16 {
		return "", fmt.Errorf("%s is too short to be a token; delete it, and the next start makes another", path)
	}
	return token, nil
}

// newLog makes the log: colours on a terminal, else text or JSON.
func newLog(conf LogConfig, w io.Writer, redact func(string) string) *slog.Logger {
	replace := redactAttr(redact)
	opts := &slog.HandlerOptions{Level: conf.Level, ReplaceAttr: replace}
	switch {
	case conf.Format == "json":
		return slog.New(slog.NewJSONHandler(w, opts))
	case isTerminal(w):
		return slog.New(tint.NewTextHandler(w, &tint.Options{Level: conf.Level, ReplaceAttr: replace, TimeFormat: time.TimeOnly}))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

func discardLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

// load finds and reads the configuration.
func (e *env) load() (*Config, error) {
	path, err := findConfig(e.config)
	if err != nil {
		return nil, err
	}
	cfg, _, err := loadConfig(path, os.LookupEnv, platforms())
	return cfg, err
}

// read opens the database beside a running service, for looking.
func (e *env) read(look func(*Config, *storage.DB) error) error {
	cfg, err := e.load()
	if err != nil {
		return err
	}
	db, err := storage.Open(e.ctx, storage.Config{Dir: cfg.Bot.DataDir, ReadOnly: true}, discardLog())
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("there is no database in %s yet; bot serve makes it", cfg.Bot.DataDir)
	}
	if err != nil {
		return err
	}
	return errors.Join(look(cfg, db), db.Close())
}

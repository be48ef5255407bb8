package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2/unstable"

	"trill/adapters"
	"trill/pipeline"
)

// maxConfig bounds a configuration file, in bytes.
const maxConfig = 1 << 20

// Config is everything an operator can set; config.example.toml explains the
// keys. Paths in it are absolute, and text that was "env:NAME" or "file:PATH" is
// what that leads to.
type Config struct {
	Bot      BotConfig          `toml:"bot"`
	Server   ServerConfig       `toml:"server"`
	Log      LogConfig          `toml:"log"`
	Storage  StorageConfig      `toml:"storage"`
	Models   map[string]Model   `toml:"models"`
	Access   AccessConfig       `toml:"access"`
	Limits   LimitsConfig       `toml:"limits"`
	Engine   EngineConfig       `toml:"engine"`
	Chat     ChatConfig         `toml:"chat"`
	Projects map[string]Project `toml:"projects"`
	Channels map[string]Channel `toml:"channels"`

	File     string    `toml:"-"` // where it was read from, as it was named
	Warnings []Warning `toml:"-"`
	// Borrowed is what came from the environment and files. It is exported
	// because fmt would print a field that is not in plain.
	Borrowed []adapters.Secret `toml:"-"`
}

// BotConfig is who the bot is.
type BotConfig struct {
	Name          string `toml:"name"`
	Trigger       string `toml:"trigger"`
	DataDir       string `toml:"data_dir"`
	FollowThreads bool   `toml:"follow_threads"`
}

// ServerConfig is the HTTP server.
type ServerConfig struct {
	Listen        string          `toml:"listen"`
	PublicURL     string          `toml:"public_url"` // without a slash at the end
	Token         adapters.Secret `toml:"token"`      // empty: made at the first start
	ShutdownGrace Duration        `toml:"shutdown_grace"`
}

// LogConfig is how the log looks.
type LogConfig struct {
	Level  slog.Level `toml:"level" one:"debug|info|warn|error"`
	Format string     `toml:"format" one:"text|json"`
}

// StorageConfig is where data is kept; URL is empty, which is SQLite.
type StorageConfig struct {
	URL adapters.Secret `toml:"url"`
}

// Model is one way to get answers.
type Model struct {
	Provider      string          `toml:"provider,required" one:"openai|offline"`
	BaseURL       string          `toml:"base_url"`
	APIKey        adapters.Secret `toml:"api_key"`
	Model         string          `toml:"model"`
	ContextWindow int             `toml:"context_window"` // tokens; 0: 128,000
	MaxOutput     int             `toml:"max_output"`     // tokens; 0: the server's
}

// AccessConfig is who may do what.
type AccessConfig struct {
	Default     pipeline.Role `toml:"default" one:"none|guest|member"`
	SelfApprove bool          `toml:"self_approve"`
	Grant       []Grant       `toml:"grant"`
}

// Grant gives somebody a role.
type Grant struct {
	Who  string        `toml:"who,required"`
	Role pipeline.Role `toml:"role,required" one:"none|guest|member|operator|admin"`
}

// Access returns the rules as package pipeline reads them.
func (c AccessConfig) Access() pipeline.Access {
	a := pipeline.Access{Default: c.Default, SelfApprove: c.SelfApprove}
	for _, g := range c.Grant {
		a.Grants = append(a.Grants, pipeline.Grant(g))
	}
	return a
}

// LimitsConfig bounds how much is asked; 0 is no limit where it is per hour.
type LimitsConfig struct {
	PersonPerHour int `toml:"person_per_hour"`
	RoomPerHour   int `toml:"room_per_hour"`
	TotalPerHour  int `toml:"total_per_hour"`
	MaxRuns       int `toml:"max_runs" min:"1"` // at the same time
}

// EngineConfig is how a request is worked on.
type EngineConfig struct {
	Model        string            `toml:"model"`
	Workspace    string            `toml:"workspace"`
	ToolTimeout  Duration          `toml:"tool_timeout" min:"1s"`
	Instructions string            `toml:"instructions"`
	Sandbox      SandboxConfig     `toml:"sandbox"`
	Permissions  PermissionsConfig `toml:"permissions"`
}

// SandboxConfig confines commands.
type SandboxConfig struct {
	Mode    string `toml:"mode" one:"auto|required|off"`
	Network bool   `toml:"network"`
}

// PermissionsConfig decides about tool calls.
type PermissionsConfig struct {
	Mode            string           `toml:"mode" one:"allow|ask|deny"`
	ApprovalTimeout Duration         `toml:"approval_timeout" min:"1s"`
	Rule            []PermissionRule `toml:"rule"`
}

// PermissionRule decides about the calls that match all it says; an empty field
// matches everything.
type PermissionRule struct {
	Tool      string        `toml:"tool"`
	When      string        `toml:"when"`
	Operation string        `toml:"operation" one:"get|set"`
	Person    string        `toml:"person"`
	Role      pipeline.Role `toml:"role" one:"guest|member|operator|admin"`
	Channel   string        `toml:"channel"`
	Decision  string        `toml:"decision,required" one:"allow|ask|deny"`
}

// ChatConfig is what people see while they wait.
type ChatConfig struct {
	Ack         bool     `toml:"ack"`
	AckAfter    Duration `toml:"ack_after"`
	StatusAfter Duration `toml:"status_after"` // 0: never
}

// Project is a folder that sessions can work in.
type Project struct {
	Path        string `toml:"path,required"`
	Description string `toml:"description"`
}

// Channel is one account of a chat platform.
type Channel struct {
	Platform  adapters.Platform `toml:"platform,required"`
	Ambiguous string            `toml:"ambiguous" one:"resend|hold"`
	Sessions  string            `toml:"sessions" one:"room|reply"`
	// Settings are the platform's own keys: what the platforms given to
	// [loadConfig] made.
	Settings any `toml:"-"`
}

// platformConfig is the settings of a platform that can tell its own faults,
// joined, each starting with its key.
type platformConfig interface{ Validate() error }

// Duration is a time.Duration that is written "300ms", "90s" or "2h30m".
type Duration time.Duration

// Duration returns d as the standard library's type.
func (d Duration) Duration() time.Duration { return time.Duration(d) }

func (d Duration) String() string { return time.Duration(d).String() }

// defaultConfig is the configuration of an empty file.
func defaultConfig() *Config {
	return &Config{
		Bot:    BotConfig{Name: "Trill", Trigger: "@trill", DataDir: "data"},
		Server: ServerConfig{Listen: "127.0.0.1:8420", ShutdownGrace: Duration(10 * time.Second)},
		Log:    LogConfig{Level: slog.LevelInfo, Format: "text"},
		Access: AccessConfig{Default: pipeline.RoleNone},
		Limits: LimitsConfig{PersonPerHour: 60, RoomPerHour: 240, TotalPerHour: 2000, MaxRuns: 64},
		Engine: EngineConfig{
			Model: "default", Workspace: "workspaces", ToolTimeout: Duration(2 * time.Minute),
			Sandbox:     SandboxConfig{Mode: "auto"},
			Permissions: PermissionsConfig{Mode: "ask", ApprovalTimeout: Duration(10 * time.Minute)},
		},
		Chat: ChatConfig{Ack: true, AckAfter: Duration(300 * time.Millisecond), StatusAfter: Duration(30 * time.Second)},
	}
}

// findConfig returns the file to read: the one named on the command line, or
// trill.toml here, or in the user's configuration folder.
func findConfig(named string) (string, error) {
	if named != "" {
		return named, nil
	}
	places := []string{"trill.toml"}
	if dir, err := os.UserConfigDir(); err == nil {
		places = append(places, filepath.Join(dir, "trill", "trill.toml"))
	}
	for _, p := range places {
		if _, err := os.Stat(p); err == nil {
			return p, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("configuration: %w", err)
		}
	}
	return "", fmt.Errorf("there is no %s; look around with `bot demo`, or copy config.example.toml to trill.toml and edit it",
		strings.Join(places, " and no "))
}

// loadConfig reads and checks the file at path. env looks up environment
// variables, platforms makes the settings of each platform with their defaults, a
// pointer to a struct. What is wrong with the file is a [configFaults]; then
// there is no Config.
func loadConfig(path string, env func(string) (string, bool), platforms map[string]func() any) (*Config, []Warning, error) {
	data, mode, err := readSmall(path, maxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("configuration %s: no such file; copy config.example.toml there and edit it", path)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	d := &decoder{file: path, dir: dir, exposed: mode.Perm()&0o004 != 0, env: env, platforms: platforms}
	return d.config(data)
}

// config decodes and checks a whole file.
func (d *decoder) config(data []byte) (*Config, []Warning, error) {
	d.doc = parseDocument(bytes.TrimPrefix(data, []byte("\ufeff")))
	d.known = map[string][]string{}
	schema("[]", "", d.platforms, d.known, reflect.ValueOf(new(Config)).Elem())
	for _, f := range d.doc.faults {
		f.File = d.file
		d.faults = append(d.faults, f)
	}
	c := defaultConfig()
	c.File = d.file
	d.into(d.doc.root, reflect.ValueOf(c).Elem())
	c.Borrowed = d.borrowed
	if !d.doc.broken {
		d.check(c)
	}
	if len(d.faults) == 0 {
		for _, f := range d.doc.secondOpinion() {
			f.File = d.file
			d.faults = append(d.faults, f)
		}
	}
	sortFaults(d.faults)
	sortFaults(d.warnings)
	if len(d.faults) > 0 {
		return nil, d.warnings, configFaults(d.faults)
	}
	c.Bot.DataDir = within(d.dir, c.Bot.DataDir)
	c.Engine.Workspace = within(c.Bot.DataDir, c.Engine.Workspace)
	c.Server.PublicURL = strings.TrimRight(c.Server.PublicURL, "/")
	c.Warnings = d.warnings
	return c, d.warnings, nil
}

// decodeTable reads a channel: which keys it has is up to its platform. Of an
// unknown platform only the common ones are judged.
func (c *Channel) decodeTable(d *decoder, n *node) {
	c.Ambiguous, c.Sessions = "resend", "room"
	own := reflect.ValueOf(c).Elem()
	p := n.kids["platform"]
	if p == nil || p.kind != unstable.String {
		d.table(n, true, own)
		return
	}
	settings, ok := d.platforms[p.text]
	if !ok {
		d.choice(p, p.text, strconv.Quote(shorten(p.text)), slices.Sorted(maps.Keys(d.platforms)))
		d.table(n, true, own)
		return
	}
	c.Settings = settings()
	d.table(n, false, own, reflect.ValueOf(c.Settings).Elem())
}

// check looks at what the types cannot tell.
func (d *decoder) check(c *Config) {
	d.checkService(c)
	d.checkModels(c)
	d.checkAccess(c)
	for _, name := range slices.Sorted(maps.Keys(c.Projects)) {
		t, p := d.doc.find("projects."+name), c.Projects[name]
		p.Path = within(d.dir, p.Path)
		if info, err := os.Stat(p.Path); err != nil {
			d.blame(t, "path", "there is no such folder: %v", cause(err))
		} else if !info.IsDir() {
			d.blame(t, "path", "is no folder")
		}
		c.Projects[name] = p
	}
	if len(c.Channels) == 0 {
		d.warn(d.doc.find("channels"), "channels", "none is configured, so nobody can reach the bot; add a [channels.NAME]")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Channels)) {
		if s, ok := c.Channels[name].Settings.(platformConfig); ok {
			d.checkPlatform(d.doc.find("channels."+name), s, c)
		}
	}
}

func (d *decoder) checkService(c *Config) {
	bot, server := d.doc.find("bot"), d.doc.find("server")
	if strings.TrimSpace(c.Bot.Name) == "" {
		d.blame(bot, "name", "must not be empty")
	}
	if c.Bot.Trigger == "" || len(strings.Fields(c.Bot.Trigger)) != 1 || strings.TrimSpace(c.Bot.Trigger) != c.Bot.Trigger {
		d.blame(bot, "trigger", `must be one word without spaces, such as "@trill"`)
	}
	if c.Bot.DataDir == "" {
		d.blame(bot, "data_dir", `must be a folder, such as "data"`)
	}
	host, port, err := net.SplitHostPort(c.Server.Listen)
	if n, nerr := strconv.ParseUint(port, 10, 16); err != nil || nerr != nil || strings.ContainsAny(host, " /@") || n > 65535 {
		d.blame(server, "listen", `must be an address and a port, such as "127.0.0.1:8420"`)
	}
	if c.Server.PublicURL != "" && !isWebAddress(c.Server.PublicURL) {
		d.blame(server, "public_url", `must be an address such as "https://trill.example.com", without password, ? and #`)
	}
	if t := c.Server.Token.Reveal(); t != "" && len(t) < 16 {
		d.blame(server, "token", "must have at least 16 characters; leave it empty to have one made")
	}
	if u := c.Storage.URL.Reveal(); strings.HasPrefix(u, "postgres") {
		d.blame(d.doc.find("storage"), "url", "PostgreSQL is not part of this version; leave url empty to use SQLite in bot.data_dir")
	} else if u != "" {
		d.blame(d.doc.find("storage"), "url", "must be empty, which is SQLite in bot.data_dir")
	}
}

// isWebAddress reports whether s is an http address of a place, and no more.
func isWebAddress(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" &&
		u.User == nil && u.RawQuery == "" && u.Fragment == "" && !strings.ContainsAny(s, " ?#")
}

func (d *decoder) checkModels(c *Config) {
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		t, m := d.doc.find("models."+name), c.Models[name]
		if m.BaseURL != "" && !isWebAddress(m.BaseURL) {
			d.blame(t, "base_url", `must be an address such as "http://127.0.0.1:11434/v1", without password, ? and #`)
		}
		if m.Provider != "openai" {
			continue
		}
		if m.Model == "" {
			d.blame(t, "model", `is missing; name a model of the server, such as "gpt-5-mini"`)
		}
		if m.BaseURL == "" && m.APIKey == "" {
			d.blame(t, "api_key", `is missing; write "env:OPENAI_API_KEY", or set base_url to a server of your own`)
		}
	}
	names := slices.Sorted(maps.Keys(c.Models))
	switch near := nearest(c.Engine.Model, names); {
	case len(names) == 0:
		models := d.doc.find("models")
		d.faults = append(d.faults, d.note(models, "models",
			`no model is configured; add [models.default] with provider = "openai", or with provider = "offline" for a rehearsal without a model`))
	case slices.Contains(names, c.Engine.Model):
	case near != "":
		d.blame(d.doc.find("engine"), "model", "there is no [models.%s]; did you mean %q?", shorten(c.Engine.Model), near)
	default:
		d.blame(d.doc.find("engine"), "model", "there is no [models.%s]; there is %s", shorten(c.Engine.Model), strings.Join(names, ", "))
	}
}

func (d *decoder) checkAccess(c *Config) {
	access := d.doc.find("access")
	if c.Access.Default != pipeline.RoleNone {
		d.warn(d.where(access, "default"), "access.default", "everybody who can write to the bot is a %s; grants of their own are safer", c.Access.Default)
	}
	grants := d.doc.find("access.grant").items
	for i, g := range c.Access.Grant {
		d.checkPerson(grants[i], "who", g.Who, c)
		if strings.Contains(g.Who, "*") && g.Role != pipeline.RoleNone {
			d.warn(d.where(grants[i], "who"), "access.grant.who", "the * gives the role %s to everybody who matches, also to people who come later", g.Role)
		}
	}
	rules := d.doc.find("engine.permissions.rule").items
	for i, r := range c.Engine.Permissions.Rule {
		if r.Person != "" {
			d.checkPerson(rules[i], "person", r.Person, c)
		}
		if r.Channel != "" {
			d.checkChannel(rules[i], "channel", r.Channel, c)
		}
		if r.Decision == "allow" && (r.Tool == "" || strings.Trim(r.Tool, "*") == "") && strings.Trim(r.When, "*") == "" && r.Operation != "get" {
			d.warn(rules[i], "engine.permissions.rule", "this allows every tool without asking; name a tool")
		}
	}
	if c.Engine.Permissions.Mode == "allow" {
		d.warn(d.where(d.doc.find("engine.permissions"), "mode"), "engine.permissions.mode", "what no rule decides is done without asking")
	}
	if c.Engine.Sandbox.Mode == "off" {
		d.warn(d.where(d.doc.find("engine.sandbox"), "mode"), "engine.sandbox.mode", "commands can reach whatever the bot can reach")
	}
}

// checkPerson looks at "channel:id", in which both parts may have a *.
func (d *decoder) checkPerson(t *node, name, who string, c *Config) {
	channel, id, ok := strings.Cut(who, ":")
	if who == "*" {
		return
	}
	if !ok || channel == "" || id == "" {
		d.blame(t, name, `must be channel:id, such as "cloud:users/alice"; "cloud:*" is everybody there`)
		return
	}
	d.checkChannel(t, name, channel, c)
}

func (d *decoder) checkChannel(t *node, name, channel string, c *Config) {
	if strings.Contains(channel, "*") {
		return
	}
	if _, ok := c.Channels[channel]; ok {
		return
	}
	names := slices.Sorted(maps.Keys(c.Channels))
	what := fmt.Sprintf("there is no [channels.%s]", channel)
	if k := t.kids[name]; k != nil && (strings.HasPrefix(k.text, "env:") || strings.HasPrefix(k.text, "file:")) {
		what = "its channel is not configured" // the name came from elsewhere
	}
	if near := nearest(channel, names); near != "" {
		d.blame(t, name, "%s; did you mean %q?", what, near)
	} else {
		d.blame(t, name, "%s; there is %s", what, strings.Join(append(names, `"*"`), ", "))
	}
}

// checkPlatform puts the faults that a platform finds in its settings where they
// are in the file.
func (d *decoder) checkPlatform(t *node, s platformConfig, c *Config) {
	var secrets []string
	for _, v := range append(Secrets(c), secretsIn(reflect.ValueOf(s))...) {
		secrets = append(secrets, v, "***")
	}
	hide := strings.NewReplacer(secrets...)
	keys := fieldsOf(reflect.ValueOf(s).Elem())
	for _, err := range unjoin(s.Validate()) {
		name, text, ok := strings.Cut(err.Error(), ":")
		if _, known := keys[name]; !ok || !known {
			d.faults = append(d.faults, d.note(t, t.path, "%s", hide.Replace(err.Error())))
			continue
		}
		d.blame(t, name, "%s", hide.Replace(strings.TrimSpace(text)))
	}
}

// unjoin returns the errors that errors.Join put together.
func unjoin(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, unjoin(e)...)
	}
	return all
}

// Secrets returns what must never be seen of a configuration: its secrets, and
// everything that came out of the environment or a file, as far as it is long
// enough to be told from ordinary text.
func Secrets(c *Config) []string {
	all := secretsIn(reflect.ValueOf(c))
	for _, s := range c.Borrowed {
		all = append(all, s.Reveal())
	}
	all = slices.DeleteFunc(all, func(s string) bool { return len(s) < shortestSecret })
	slices.Sort(all)
	return slices.Compact(all)
}

// secretsIn returns every secret inside of v that is set.
func secretsIn(v reflect.Value) []string {
	var all []string
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			all = secretsIn(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			all = append(all, secretsIn(v.Field(i))...)
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			all = append(all, secretsIn(it.Value())...)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			all = append(all, secretsIn(v.Index(i))...)
		}
	case reflect.String:
		if v.Type() == reflect.TypeFor[adapters.Secret]() && v.Len() > 0 {
			all = append(all, v.String())
		}
	}
	return all
}

package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rivo/uniseg"

	"trill/adapters"
	"trill/adapters/nextcloudtalk"
	"trill/adapters/nextcloudtalk/talktest"
	"trill/pipeline"
)

type demoCmd struct {
	Verbose bool `short:"v" help:"Show the service's log as well."`
}

// The cast of the demo.
const (
	demoRoom  = "team2026"
	demoAlice = "users/alice" // asks
	demoOlga  = "users/olga"  // an operator, who may approve
	demoWait  = 15 * time.Second
)

// Run plays a conversation in a pretended Nextcloud room against the real
// service, then lets the person at the terminal go on with it.
func (c *demoCmd) Run(e *env) (err error) {
	dir, err := os.MkdirTemp("", "trill-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()

	secret := rand.Text() + rand.Text()
	cloud := talktest.New(talktest.Config{Secret: secret, BotName: "Trill"})
	cloudURL, err := cloud.Start()
	if err != nil {
		return fmt.Errorf("start the pretended Nextcloud: %w", err)
	}
	defer cloud.Close()
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	webhook := fmt.Sprintf("http://%s/api/webhooks/cloud", ln.Addr())
	cloud.SetBot(webhook)

	log := io.Discard
	if c.Verbose {
		log = e.err
	}
	a, err := newApp(ctx, demoConfig(dir, cloudURL, webhook, secret), e.helper, log, direct)
	if err != nil {
		ln.Close()
		return err
	}
	served := make(chan error, 1)
	go func() { served <- a.serve(ctx, ln) }()
	defer func() { cancel(); err = errors.Join(err, <-served) }()

	s := &stage{cloud: cloud, out: e.out, palette: newPalette(e.out), grew: make(chan struct{})}
	fmt.Fprintf(e.out, "Trill at work: a rehearsal without a model, a key or a network.\n"+
		"The room \"Team\" is on a pretended Nextcloud at %s; everything else is the real service.\n\n", cloudURL)
	cloud.AddRoom(demoRoom, "Team")
	if _, err := cloud.Enable(ctx, demoRoom); err != nil {
		return err
	}
	var watching sync.WaitGroup
	watching.Go(func() { s.watch(ctx) })
	defer func() { cancel(); watching.Wait() }()

	if err := s.rehearse(ctx); err != nil {
		if e.ctx.Err() != nil {
			return nil
		}
		return err
	}
	return s.converse(ctx, e.in)
}

// demoConfig is what an operator would have written in trill.toml.
func demoConfig(dir, cloudURL, webhook, secret string) *Config {
	cfg := defaultConfig()
	cfg.File = "(demo)"
	cfg.Bot.DataDir = dir
	cfg.Engine.Workspace = dir + "/workspaces"
	cfg.Server.ShutdownGrace = Duration(time.Second)
	cfg.Models = map[string]Model{"default": {Provider: "offline"}}
	cfg.Access.Grant = []Grant{
		{Who: "cloud:" + demoAlice, Role: pipeline.RoleMember},
		{Who: "cloud:" + demoOlga, Role: pipeline.RoleOperator},
	}
	for _, line := range []string{"ls*", "date*", "cat *"} { // everything else asks
		cfg.Engine.Permissions.Rule = append(cfg.Engine.Permissions.Rule, PermissionRule{Tool: "shell", When: line, Decision: "allow"})
	}
	cfg.Channels = map[string]Channel{"cloud": {
		Platform: nextcloudtalk.Platform, Ambiguous: "resend", Sessions: "room",
		Settings: &nextcloudtalk.Config{URL: cloudURL, Secret: adapters.Secret(secret), WebhookURL: webhook},
	}}
	return cfg
}

// stage shows the room on the terminal.
type stage struct {
	cloud   *talktest.Server
	palette palette

	mu     sync.Mutex // guards what follows
	out    io.Writer
	prompt bool // the last line is one to type on
	shown  []talktest.Posted
	grew   chan struct{} // closed and made anew when shown grows
}

// rehearse plays the beginning of the conversation.
func (s *stage) rehearse(ctx context.Context) error {
	if _, err := s.ask(ctx, demoAlice, "@Trill hello! Who are you?"); err != nil {
		return err
	}
	question, err := s.ask(ctx, demoAlice, "@trill write notes.md: buy milk and bread")
	if err != nil {
		return err
	}
	_, rest, ok := strings.Cut(question.Text, "/approve ")
	if !ok {
		return fmt.Errorf("the bot did not ask before it wrote: %q", question.Text)
	}
	code, _, _ := strings.Cut(rest, "`")
	asked := question.ReplyTo
	if _, err := s.say(ctx, demoOlga, "/approve "+code); err != nil {
		return err
	}
	_, err = s.await(ctx, func(p talktest.Posted) bool { return p.ReplyTo == asked && p.ID > question.ID })
	return err
}

// ask posts a message and waits for what the bot replies to it.
func (s *stage) ask(ctx context.Context, actor, text string) (talktest.Posted, error) {
	id, err := s.say(ctx, actor, text)
	if err != nil {
		return talktest.Posted{}, err
	}
	return s.await(ctx, func(p talktest.Posted) bool { return p.ReplyTo == id })
}

// await returns the first message of the bot that matches, once it is shown.
func (s *stage) await(ctx context.Context, match func(talktest.Posted) bool) (talktest.Posted, error) {
	ctx, cancel := context.WithTimeout(ctx, demoWait)
	defer cancel()
	for {
		s.mu.Lock()
		i, grew := slices.IndexFunc(s.shown, match), s.grew
		if i >= 0 {
			defer s.mu.Unlock()
			return s.shown[i], nil
		}
		s.mu.Unlock()
		select {
		case <-grew:
		case <-ctx.Done():
			return talktest.Posted{}, fmt.Errorf("wait for an answer of the bot: %w", ctx.Err())
		}
	}
}

// say posts a message as a person, and shows it.
func (s *stage) say(ctx context.Context, actor, text string) (int64, error) {
	s.show(actor, text)
	d, err := s.cloud.Post(ctx, demoRoom, actor, text, talktest.PostOptions{})
	if err != nil {
		return 0, fmt.Errorf("tell the bot: %w", err)
	}
	if d.Status != 200 {
		return 0, fmt.Errorf("tell the bot: it answered %d", d.Status)
	}
	return d.ID, nil
}

// watch shows what the bot posts.
func (s *stage) watch(ctx context.Context) {
	for p := range s.cloud.Watch(ctx) {
		s.show("Trill", p.Text)
		s.mu.Lock()
		s.shown = append(s.shown, p)
		close(s.grew)
		s.grew = make(chan struct{})
		s.mu.Unlock()
	}
}

// converse lets the person at the terminal speak, until the input ends.
func (s *stage) converse(ctx context.Context, in io.Reader) error {
	terminal := isTerminal(in)
	s.print("\nNow you: you are Alice. Begin with @trill, e.g. \"@trill list files\" or \"@trill run `date`\".\n" +
		"Begin with \"olga:\" to speak as Olga, who may approve. Ctrl-D or /quit ends the demo.\n\n")
	lines := make(chan string)
	failed := make(chan error, 1)
	go func() {
		defer close(lines)
		sc := bufio.NewScanner(in)
		for sc.Scan() {
			select {
			case lines <- sc.Text():
			case <-ctx.Done():
				return
			}
		}
		failed <- sc.Err()
	}()
	for {
		if terminal {
			s.invite()
		}
		var line string
		var ok bool
		select {
		case <-ctx.Done():
			return nil
		case line, ok = <-lines:
		}
		line = strings.TrimSpace(line)
		if !ok || line == "/quit" || line == "/exit" {
			s.print("\nGoodbye. To set it up for your team: see README.md.\n")
			select {
			case err := <-failed:
				return err
			default:
				return nil
			}
		}
		if line == "" {
			continue
		}
		if terminal { // what was typed stands there; it is shown again with its name
			s.print("\x1b[1A\r\x1b[K")
		}
		actor := demoAlice
		if rest, is := strings.CutPrefix(line, "olga:"); is {
			actor, line = demoOlga, strings.TrimSpace(rest)
		}
		id, err := s.say(ctx, actor, line)
		if err != nil {
			return err
		}
		// Typed at a terminal, answers come when they come; piped in, each is
		// waited for, except what is added to work that waits for an approval.
		if !terminal && strings.Contains(strings.ToLower(line), "@trill") {
			if _, err := s.await(ctx, func(p talktest.Posted) bool { return p.ID > id }); err != nil {
				s.print("(no answer yet)\n\n")
			}
		}
	}
}

// invite shows that something can be typed.
func (s *stage) invite() {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprint(s.out, "> ")
	s.prompt = true
}

func (s *stage) print(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprint(s.out, text)
	s.prompt = false
}

// wrap breaks a line at spaces so that each piece has at most width characters,
// where words allow it.
func wrap(line string, width int) []string {
	var pieces []string
	for uniseg.StringWidth(line) > width {
		cut, seen := 0, 0
		for i, r := range line {
			if r == ' ' && i > 0 && seen <= width {
				cut = i
			}
			if seen++; seen > width && cut > 0 {
				break
			}
		}
		if cut == 0 {
			break
		}
		pieces = append(pieces, line[:cut])
		line = strings.TrimLeft(line[cut:], " ")
	}
	return append(pieces, line)
}

// show prints a message of the room: who, and the text indented beside it.
func (s *stage) show(actor, text string) {
	name, colour := "Trill", green
	if id, ok := strings.CutPrefix(actor, "users/"); ok {
		name, colour = strings.ToUpper(id[:1])+id[1:], yellow
	}
	label := s.palette.paint(colour, fmt.Sprintf("%-6s", name))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.prompt {
		fmt.Fprint(s.out, "\r\x1b[K")
	}
	width := max(terminalWidth(s.out)-8, 40)
	if !isTerminal(s.out) {
		width = len(text) + 1
	}
	for _, line := range strings.Split(text, "\n") {
		for _, part := range wrap(printable(strings.ReplaceAll(line, "\u2060", "")), width) {
			fmt.Fprintln(s.out, strings.TrimRight(label+"  "+part, " "))
			label = "      "
		}
	}
	fmt.Fprintln(s.out)
	if s.prompt {
		fmt.Fprint(s.out, "> ")
	}
}

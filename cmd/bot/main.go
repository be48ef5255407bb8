// Command bot is Trill, a teammate that lives in a team's chat rooms: it takes
// mentions, works with tools under rules, and answers in the thread.
//
// This package is the process: configuration, wiring, HTTP, and one file per
// subcommand. What it wires is in the packages adapters, pipeline, engine and
// storage.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"trill/engine/sandbox"
)

// The exit codes of the process.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// cli is what can be written on the command line.
type cli struct {
	Config string `name:"config" short:"c" placeholder:"FILE" help:"Configuration file. Default: trill.toml, then trill/trill.toml in the user's config folder."`

	Serve    serveCmd    `cmd:"" help:"Run the service."`
	Demo     demoCmd     `cmd:"" help:"Show it at work: no key, no network, no configuration needed."`
	Doctor   doctorCmd   `cmd:"" help:"Check configuration, database, channels and model, and say what to do."`
	Check    checkCmd    `cmd:"" name:"config" help:"Work with the configuration file."`
	Sessions sessionsCmd `cmd:"" help:"Look at sessions."`
	Trace    traceCmd    `cmd:"" help:"Show what became of a message: received, ran, posted where."`
	Outbox   outboxCmd   `cmd:"" help:"Look at outgoing messages, and send held ones again."`
	Backup   backupCmd   `cmd:"" help:"Copy the database to a file while the service runs."`
	Version  versionCmd  `cmd:"" help:"Print the version."`
}

// env is what a subcommand works with, so that tests can run one.
type env struct {
	ctx    context.Context
	helper sandbox.Helper
	config string // as given; empty: search
	in     io.Reader
	out    io.Writer
	err    io.Writer
}

func main() {
	helper := sandbox.Main() // returns unless this process is a tool's helper
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, helper, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run parses the arguments, runs the subcommand and returns the exit code.
func run(ctx context.Context, helper sandbox.Helper, args []string, in io.Reader, out, errOut io.Writer) int {
	var c cli
	exited := -1
	parser, err := kong.New(&c,
		kong.Name("bot"),
		kong.Description("A self-hosted AI teammate for chat rooms. Begin with: bot demo"),
		kong.Writers(out, errOut),
		kong.Exit(func(code int) { exited = code }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: false, WrapUpperBound: 100}),
		kong.UsageOnError(),
	)
	if err != nil {
		fmt.Fprintln(errOut, "bot:", err)
		return exitFailed
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	kctx, err := parser.Parse(longFlags(args))
	if exited >= 0 { // help was printed
		return exited
	}
	if err != nil {
		fmt.Fprintf(errOut, "bot: %v\n", err)
		if pe, ok := errors.AsType[*kong.ParseError](err); ok && pe.Context != nil {
			fmt.Fprintf(errOut, "See: %s -h\n", strings.TrimSpace("bot "+pe.Context.Command()))
		}
		return exitUsage
	}
	err = kctx.Run(&env{ctx: ctx, helper: helper, config: c.Config, in: in, out: out, err: errOut})
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errSilent):
	default:
		fmt.Fprintf(errOut, "bot: %v\n", err)
	}
	return exitFailed
}

// errSilent fails a subcommand that has said why already.
var errSilent = errors.New("failed")

var singleDash = regexp.MustCompile(`^-[a-z][a-z-]+(=|$)`)

// longFlags lets long flags begin with one dash as well: -config, -json.
func longFlags(args []string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		if a == "--" {
			copy(out[i:], args[i:])
			break
		}
		if singleDash.MatchString(a) {
			a = "-" + a
		}
		out[i] = a
	}
	return out
}

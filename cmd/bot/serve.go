package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"trill/adapters"
	"trill/storage"
)

type serveCmd struct{}

// Run serves until the process is told to end. Then it stops working, keeps
// accepting messages until the last moment, and leaves the rest to the next
// start.
func (c *serveCmd) Run(e *env) error {
	cfg, err := e.load()
	if err != nil {
		return err
	}
	a, err := newApp(e.ctx, cfg, e.helper, e.err, direct)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(e.ctx, "tcp", cfg.Server.Listen)
	if err != nil {
		err = fmt.Errorf("server.listen: %w; choose another address in %s", plain(err), cfg.File)
		return errors.Join(err, a.close())
	}
	return a.serve(e.ctx, ln)
}

// direct uses the database as it is.
func direct(s store) store { return s }

// plain takes the operation and the address out of a network error: "address
// already in use".
func plain(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		if oe, ok := errors.AsType[*net.OpError](err); ok && oe.Addr != nil {
			return fmt.Errorf("%s: %w", oe.Addr, errno)
		}
	}
	return err
}

// serve runs the service on ln until ctx is done, and closes the app.
func (a *app) serve(ctx context.Context, ln net.Listener) (err error) {
	defer func() { err = errors.Join(err, a.close()) }()
	if err := a.pipeline.Start(ctx); err != nil {
		ln.Close()
		return err
	}
	listening, stopListening := context.WithCancel(context.WithoutCancel(ctx))
	listeners, tidying := a.listen(listening), a.tidy(listening)
	srv := newServer(a.routes(), a.log)
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }()
	a.log.Info("serving", "listen", ln.Addr().String(), "version", version(), "channels", len(a.channels))

	select {
	case <-ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("serve http: %w", err)
	case err = <-a.broken(ctx):
	}
	a.log.Info("shutting down", "grace", a.cfg.Server.ShutdownGrace.Duration())
	// A second signal ends the process at once; nothing is lost by that.
	again, stopAgain := signal.NotifyContext(context.WithoutCancel(ctx), os.Interrupt, syscall.SIGTERM)
	defer stopAgain()
	stopListening()
	<-listeners
	<-tidying
	end, cancel := context.WithTimeout(again, a.cfg.Server.ShutdownGrace.Duration()+drainTime)
	defer cancel()
	a.pipeline.Stop(end)
	if serr := srv.Shutdown(end); serr != nil {
		srv.Close()
	}
	a.log.Info("stopped")
	return err
}

// keepIgnored is how long a message that was ignored is remembered.
const keepIgnored = 30 * 24 * time.Hour

// tidy removes once a day what nobody needs any more. What is returned is closed
// when it has ended.
func (a *app) tidy(ctx context.Context) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for wait := time.Minute; ; wait = 24 * time.Hour {
			t := time.NewTimer(wait)
			select {
			case <-ctx.Done():
				t.Stop()
				return
			case <-t.C:
			}
			n, err := a.db.Prune(ctx, time.Now().Add(-keepIgnored))
			switch {
			case err != nil && ctx.Err() == nil:
				a.log.Error("old messages not removed", "err", err)
			case n > 0:
				a.log.Info("old messages removed", "ignored", n)
			}
		}
	}()
	return ended
}

// broken tells when the database can no longer be trusted to keep what it is
// given; only a new start may mend that.
func (a *app) broken(ctx context.Context) <-chan error {
	told := make(chan error, 1)
	go func() {
		tick := time.NewTicker(5 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := a.db.Degraded(); errors.Is(err, storage.ErrBroken) || errors.Is(err, storage.ErrDamaged) {
				told <- err
				return
			}
		}
	}()
	return told
}

// drainTime is how long answers that are ready may take to be sent at shutdown.
const drainTime = 5 * time.Second

// listen starts the channels that have to be asked. What is returned is closed
// when all of them have ended.
func (a *app) listen(ctx context.Context) <-chan struct{} {
	var wg sync.WaitGroup
	for name, ch := range a.channels {
		l, ok := ch.Adapter.(adapters.Listener)
		if !ok {
			continue
		}
		wg.Go(func() {
			if err := l.Listen(ctx, a.pipeline); err != nil && ctx.Err() == nil {
				a.log.Error("channel stopped listening", "channel", name, "err", err)
			}
		})
	}
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	return ended
}

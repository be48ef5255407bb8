package main

import (
	"fmt"
	"strings"
)

type checkCmd struct {
	Check configCheckCmd `cmd:"" help:"Check the file; every fault is reported with its line."`
}

type configCheckCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

func (c *configCheckCmd) Run(e *env) error {
	cfg, err := e.load()
	if c.JSON {
		faults := []string{}
		if err != nil {
			faults = strings.Split(err.Error(), "\n")
		}
		if perr := printJSON(e.out, map[string]any{"ok": err == nil, "faults": faults}); perr != nil {
			return perr
		}
		if err != nil {
			return errSilent
		}
		return nil
	}
	if err != nil {
		return err
	}
	for _, w := range cfg.Warnings {
		fmt.Fprintf(e.out, "note: %s\n", w)
	}
	fmt.Fprintf(e.out, "%s is fine. Models: %d, channels: %d, grants: %d.\n", cfg.File, len(cfg.Models), len(cfg.Channels), len(cfg.Access.Grant))
	return nil
}

package engine

import _ "embed"

// basePrompt is the part of the system prompt that every session has.
//
//go:embed prompt.md
var basePrompt string

// Package pipeline takes one inbound message to one reply: accept, mention,
// access, resolve, command, run, deliver.
//
// It owns what must be durable on that way and the order in which it becomes so;
// how it is stored is package storage's business, how a platform talks is
// package adapters', what the model does is package engine's.
package pipeline

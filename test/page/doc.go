// Package page tests the page of the gateway in Chromium: that it shows what Berth does while it does it, that it asks no
// other host, and that it can be read and used by everyone. With -update the tests write the pictures of docs/images;
// -nodes=100000 makes the large map one of so many nodes, which takes a minute more.
//
// Chromium is taken from the machine. Where there is none, root on Debian gets it by apt-get; others are told to.
package page
